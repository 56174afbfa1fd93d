//! One request: key, route, body, answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use pagedllm_openai::{Answer, AnswerBody, ApiError, Caller, Endpoint, Service, is_request_id};
use serde_json::json;

use crate::auth::{Access, Keys};
use crate::metrics::HttpStats;
use crate::shutdown::Stage;
use crate::stream::{AnswerBytes, Events};
use crate::{ServerOptions, cors, limits, metrics};

/// Bodies up to this size are read by the thread that serves the connection: encoding them takes
/// less than handing them over is worth.
const INLINE_BYTES: usize = 4096;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const IGNORED_PARAMS: HeaderName = HeaderName::from_static("x-pagedllm-ignored-params");

/// What all connections share.
pub(crate) struct State {
    pub(crate) service: Service,
    pub(crate) options: ServerOptions,
    pub(crate) keys: Keys,
    pub(crate) http: HttpStats,
    pub(crate) body_memory: limits::BodyMemory,
    pub(crate) stage: Stage,
}

type Answered = Response<AnswerBytes>;

/// Where a path leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route<'a> {
    Health,
    Ready,
    Ping,
    Version,
    Metrics,
    Models,
    Model(&'a str),
    Post(Endpoint),
}

/// The routes. Paths match exactly: no second slash, no other case.
fn route(path: &str) -> Option<Route<'_>> {
    Some(match path {
        "/health" => Route::Health,
        "/ready" => Route::Ready,
        "/ping" => Route::Ping,
        "/version" => Route::Version,
        "/metrics" => Route::Metrics,
        "/v1/models" => Route::Models,
        "/v1/completions" => Route::Post(Endpoint::Completions),
        "/v1/chat/completions" => Route::Post(Endpoint::ChatCompletions),
        "/tokenize" => Route::Post(Endpoint::Tokenize),
        "/detokenize" => Route::Post(Endpoint::Detokenize),
        _ => Route::Model(path.strip_prefix("/v1/models/").filter(|name| !name.is_empty())?),
    })
}

impl Route<'_> {
    /// Name in metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Health => "/health",
            Self::Ready => "/ready",
            Self::Ping => "/ping",
            Self::Version => "/version",
            Self::Metrics => "/metrics",
            Self::Models => "/v1/models",
            Self::Model(_) => "/v1/models/{model}",
            Self::Post(Endpoint::Completions) => "/v1/completions",
            Self::Post(Endpoint::ChatCompletions) => "/v1/chat/completions",
            Self::Post(Endpoint::Tokenize) => "/tokenize",
            Self::Post(Endpoint::Detokenize) => "/detokenize",
        }
    }

    /// Methods, as the `Allow` header lists them.
    const fn methods(self) -> &'static str {
        match self {
            Self::Post(_) => "POST",
            Self::Ping => "GET, HEAD, POST",
            _ => "GET, HEAD",
        }
    }

    fn allows(self, method: &Method) -> bool {
        self.methods().split(", ").any(|known| known == method.as_str())
    }
}

/// Answers one request. Never fails: errors are answers.
pub(crate) async fn answer(state: Arc<State>, request: Request<Incoming>) -> Answered {
    let start = Instant::now();
    let method = method_name(request.method());
    let path = request.uri().path().to_owned();
    let path = path.strip_prefix(state.options.root_path.as_str()).unwrap_or(&path);
    let given_id = request
        .headers()
        .get(&REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|id| is_request_id(id))
        .map(str::to_owned);
    let origin = cors::allowed(&state.options.allowed_origins, request.headers());
    let request_id = given_id.clone().unwrap_or_else(|| state.service.new_id());

    let route = route(path);
    let is_preflight = origin.is_some() && request.method() == Method::OPTIONS;
    let mut answer = if is_preflight {
        preflight()
    } else {
        match handle(&state, route, request, given_id).await {
            Ok(answer) => answer,
            Err(error) => error_answer(&error),
        }
    };

    let headers = answer.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(origin) = origin {
        cors::grant(headers, origin);
    }
    if state.stage.is_stopping() {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let (StatusCode::METHOD_NOT_ALLOWED, Some(route)) = (answer.status(), route) {
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(route.methods()));
    }
    let status = answer.status().as_u16();
    let time = start.elapsed();
    state.http.record(route.map_or("other", Route::name), method, status, time);
    tracing::debug!(method, path = %path.escape_debug(), status, ?time, request_id, "answered");
    answer
}

/// Methods for metrics: whatever a client invents counts as one.
fn method_name(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "PATCH" => "PATCH",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

async fn handle(
    state: &Arc<State>,
    route: Option<Route<'_>>,
    request: Request<Incoming>,
    request_id: Option<String>,
) -> Result<Answered, ApiError> {
    let access = match route {
        Some(Route::Health | Route::Ready | Route::Ping) => Access::Open,
        Some(Route::Metrics) if state.options.open_metrics => Access::Open,
        _ => state.keys.check(request.headers()),
    };
    if access == Access::Denied {
        let error = ApiError::new(401, "authentication_error", "a valid API key is required");
        return Err(error.with_code("invalid_api_key"));
    }
    let Some(route) = route else {
        return Err(ApiError::new(404, "invalid_request_error", "there is no such path"));
    };
    if !route.allows(request.method()) {
        let message = format!("this path takes {}", route.methods());
        return Err(ApiError::new(405, "invalid_request_error", message));
    }
    match route {
        Route::Health | Route::Ping => match state.service.health() {
            Ok(()) | Err(pagedllm::Error::ShuttingDown) => Ok(empty(StatusCode::OK)),
            Err(_) => Ok(empty(StatusCode::SERVICE_UNAVAILABLE)),
        },
        Route::Ready => match (state.stage.is_stopping(), state.service.health()) {
            (false, Ok(())) => Ok(empty(StatusCode::OK)),
            _ => Ok(empty(StatusCode::SERVICE_UNAVAILABLE)),
        },
        Route::Version => {
            Ok(json_answer(json!({"version": env!("CARGO_PKG_VERSION")}).to_string()))
        }
        Route::Metrics => Ok(metrics_page(state)),
        Route::Models => Ok(json_answer(state.service.models().to_string())),
        Route::Model(name) => {
            let name = percent_decoded(name);
            Ok(json_answer(state.service.model_card(&name)?.to_string()))
        }
        Route::Post(endpoint) => {
            if state.stage.is_stopping() {
                return Err(ApiError::shutting_down());
            }
            let salt = match access {
                Access::Granted(digest) => digest.as_bytes().to_vec(),
                Access::Open | Access::Denied => Vec::new(),
            };
            post(state, endpoint, request, Caller { salt, request_id }).await
        }
    }
}

async fn post(
    state: &Arc<State>,
    endpoint: Endpoint,
    request: Request<Incoming>,
    caller: Caller,
) -> Result<Answered, ApiError> {
    let ServerOptions { max_request_body_bytes, body_timeout, .. } = state.options;
    let (head, body) = request.into_parts();
    limits::check_head(&head.headers, body.size_hint().lower(), max_request_body_bytes)?;
    let room = state.body_memory.reserve(body.size_hint().exact()).await?;
    let body = limits::read_body(body, max_request_body_bytes, body_timeout).await?;
    let answer = complete(state, endpoint, body, caller).await?;
    drop(room);
    let Answer { ignored_params, body, .. } = answer;
    let mut answer = match body {
        AnswerBody::Ready(text) => json_answer(text),
        AnswerBody::Plain(mut plain) => {
            json_answer(std::future::poll_fn(|cx| plain.poll(cx)).await?)
        }
        AnswerBody::Stream(stream) => {
            let events = Events::new(*stream, state.options.sse_keep_alive_interval);
            event_answer(events)
        }
    };
    if !ignored_params.is_empty() {
        tracing::debug!(?ignored_params, "fields without effect");
        if let Some(value) = header_list(&ignored_params) {
            answer.headers_mut().insert(IGNORED_PARAMS, value);
        }
    }
    Ok(answer)
}

/// Reads and checks a body, and submits it; a large one on a thread that may take its time.
async fn complete(
    state: &Arc<State>,
    endpoint: Endpoint,
    body: Bytes,
    caller: Caller,
) -> Result<Answer, ApiError> {
    if body.len() <= INLINE_BYTES {
        let complete = || state.service.complete(endpoint, &body, &caller);
        return catch_unwind(AssertUnwindSafe(complete)).unwrap_or_else(|_| Err(unreadable()));
    }
    let service = state.service.clone();
    tokio::task::spawn_blocking(move || service.complete(endpoint, &body, &caller))
        .await
        .unwrap_or_else(|_| Err(unreadable()))
}

/// What a panic over a body becomes; the connection and the server go on.
fn unreadable() -> ApiError {
    ApiError::internal("the request could not be read")
}

/// Names that fit a header, separated by commas; others are left out.
fn header_list(names: &[String]) -> Option<HeaderValue> {
    let is_word =
        |name: &&String| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let words: Vec<&str> = names.iter().filter(is_word).map(String::as_str).collect();
    HeaderValue::from_str(&words.join(", ")).ok().filter(|_| !words.is_empty())
}

fn metrics_page(state: &State) -> Answered {
    let service = &state.service;
    let page = metrics::render(service, &state.http, state.options.legacy_metrics);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    with_type(AnswerBytes::Whole(page.into()), kind)
}

fn json_answer(text: String) -> Answered {
    with_type(AnswerBytes::Whole(text.into()), HeaderValue::from_static("application/json"))
}

fn event_answer(events: Events) -> Answered {
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    let mut answer = with_type(AnswerBytes::Events(Box::new(events)), kind);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies must pass events on as they come.
    answer.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}

fn with_type(body: AnswerBytes, kind: HeaderValue) -> Answered {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn empty(status: StatusCode) -> Answered {
    let mut answer = Response::new(AnswerBytes::Whole(Bytes::new()));
    *answer.status_mut() = status;
    answer
}

fn preflight() -> Answered {
    let mut answer = empty(StatusCode::NO_CONTENT);
    cors::grant_preflight(answer.headers_mut());
    answer
}

fn error_answer(error: &ApiError) -> Answered {
    let mut answer = json_answer(error.body().to_string());
    *answer.status_mut() =
        StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers: &mut HeaderMap = answer.headers_mut();
    if let Some(after) = error.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
    }
    if error.status == 401 {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

/// Rounded up, at least 1: a client that comes too early would be refused again.
fn whole_seconds(time: Duration) -> u64 {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).max(1)
}

/// Names of models may hold slashes, which clients write as `%2F`.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let is_code = |two: &&[u8]| two.iter().all(u8::is_ascii_hexdigit);
        let code = tail.get(..2).filter(is_code).and_then(|two| std::str::from_utf8(two).ok());
        match code.filter(|_| *first == b'%').map(|code| u8::from_str_radix(code, 16)) {
            Some(Ok(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_is_no_digit_of_a_code() {
        assert_eq!(percent_decoded("%+f%41%4"), "%+fA%4");
    }

    #[test]
    fn paths_match_exactly() {
        assert_eq!(route("/v1/models"), Some(Route::Models));
        assert_eq!(route("/v1/models/a/b"), Some(Route::Model("a/b")));
        for path in
            ["/", "", "//v1/models", "/V1/models", "/v1/models/", "/v1/completions/", "/v1", "*"]
        {
            assert_eq!(route(path), None, "{path}");
        }
    }

    #[test]
    fn percent_codes_are_decoded_and_broken_ones_left() {
        for (text, expected) in [
            ("a%2Fb", "a/b"),
            ("a%2fb%20c", "a/b c"),
            ("100%", "100%"),
            ("%zz", "%zz"),
            ("%2", "%2"),
        ] {
            assert_eq!(percent_decoded(text), expected);
        }
    }

    #[test]
    fn retry_after_is_rounded_up() {
        for (milliseconds, expected) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_900, 60)] {
            assert_eq!(whole_seconds(Duration::from_millis(milliseconds)), expected);
        }
    }
}
