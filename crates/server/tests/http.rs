//! The server over real sockets, with a model without weights. What clients send here is raw
//! bytes, good and bad; after each kind the server must answer others and hold nothing.

#[path = "../../openai/tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use pagedllm::Llm;
use pagedllm_server::{Server, ServerHandle, ServerOptions};
use serde_json::{Value, json};
use support::Behaviour;

const LONG: Duration = Duration::from_secs(60);

struct World {
    handle: ServerHandle,
    llm: Llm,
    address: SocketAddr,
}

/// One answer, taken apart.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text}"));
        let status = head[9..12].parse().expect("a status");
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if is_chunked { unchunked(body) } else { body.to_owned() };
        Self { status, head: head.to_owned(), body }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Asserts the status and OpenAI's error object.
    fn check_error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        let error = self.json()["error"].clone();
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "{key} in {error}");
        }
        error
    }
}

fn unchunked(mut text: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).expect("a size");
        if size == 0 {
            break;
        }
        whole.push_str(rest.get(..size).unwrap_or(rest));
        text = rest.get(size + 2..).unwrap_or("");
    }
    whole
}

impl World {
    fn new(behaviour: Behaviour, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let mut options = ServerOptions {
            host: "127.0.0.1".into(),
            port: 0,
            http_threads: 2,
            log_stats: false,
            ..ServerOptions::default()
        };
        change(&mut options);
        let llm = support::llm(behaviour);
        let handle = Server::start(llm.clone(), options).expect("it starts");
        let address = handle.local_addr().unwrap_or_else(|| ([127, 0, 0, 1], 1).into());
        Self { handle, llm, address }
    }

    fn plain() -> Self {
        Self::new(Behaviour::default(), |_| {})
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it accepts");
        stream.set_read_timeout(Some(LONG)).expect("a time limit");
        stream
    }

    /// What comes back for these bytes until the server closes.
    fn raw(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may answer and close before it has read everything.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    fn get(&self, path: &str, headers: &str) -> Answer {
        self.request("GET", path, headers)
    }

    /// Whether new requests are taken. A connection that comes just as the server begins to stop
    /// may be closed without an answer; then another one asks.
    fn is_ready(&self) -> bool {
        loop {
            let answer = self.raw(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            if !answer.is_empty() {
                return Answer::parse(&answer).status != 503;
            }
        }
    }

    fn request(&self, method: &str, path: &str, headers: &str) -> Answer {
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
        Answer::parse(&self.raw(request.as_bytes()))
    }

    fn post(&self, path: &str, headers: &str, body: &[u8]) -> Answer {
        Answer::parse(&self.raw(&post(path, &format!("Connection: close\r\n{headers}"), body)))
    }

    fn complete(&self, body: &Value) -> Answer {
        self.post("/v1/completions", "", body.to_string().as_bytes())
    }

    /// Waits until nothing runs, waits or is held, then asks once more.
    fn comes_to_rest(&self) {
        let end = Instant::now() + LONG;
        loop {
            let stats = self.llm.stats();
            if stats.num_running + stats.num_waiting + stats.num_blocks_used == 0 {
                break;
            }
            assert!(
                Instant::now() < end,
                "still there: {} running, {} blocks",
                stats.num_running,
                stats.num_blocks_used
            );
            std::thread::yield_now();
        }
        let answer = self.complete(&json!({"prompt": "a", "max_tokens": 2}));
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

fn post(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Payloads of a stream of events, whose framing must be exact.
fn payloads(body: &str) -> Vec<&str> {
    assert!(body.ends_with("\n\n"), "{body}");
    body.trim_end_matches("\n\n")
        .split("\n\n")
        .map(|event| {
            let payload = event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event}"));
            assert!(!payload.is_empty() && !payload.contains('\n'), "{event}");
            payload
        })
        .collect()
}

#[test]
fn streams_are_framed_as_events_h15() {
    let world = World::plain();
    let body = json!({"prompt": "a\nb", "max_tokens": 200, "stream": true});
    let answer = world.complete(&body);
    assert_eq!(answer.status, 200);
    assert!(
        answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    );
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    let payloads = payloads(&answer.body);
    let (last, others) = payloads.split_last().expect("payloads");
    assert_eq!(*last, "[DONE]");
    for payload in others {
        serde_json::from_str::<Value>(payload).expect("JSON");
    }
    world.comes_to_rest();
}

#[test]
fn every_route_is_guarded_but_those_for_probes_o11() {
    let world = World::new(Behaviour::default(), |options| {
        options.api_keys = vec!["secret".into(), "other".into()];
    });
    let guarded = [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tiny"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/metrics"),
        ("GET", "/version"),
        ("GET", "//v1/models"),
        ("GET", "/V1/models"),
        ("GET", "/v1/models/"),
        ("HEAD", "/v1/models"),
        ("GET", "/debug"),
        ("POST", "/abort"),
        ("GET", "/"),
        ("GET", "/health/"),
        ("GET", "/health/../v1/models"),
        ("OPTIONS", "/v1/models"),
        ("GET", "/v1/models?api_key=secret"),
        ("DELETE", "/v1/models"),
    ];
    for (method, path) in guarded {
        for headers in [
            "",
            "Authorization: Bearer wrong\r\n",
            "Authorization: Bearer\r\n",
            "Authorization: Bearer secre\r\n",
            "X-Api-Key: \r\n",
        ] {
            let answer = world.request(method, path, headers);
            assert_eq!(answer.status, 401, "{method} {path} {headers}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            if method != "HEAD" {
                assert_eq!(answer.check_error(401)["code"], "invalid_api_key");
            }
        }
    }
    for path in ["/health", "/ready", "/ping"] {
        assert_eq!(world.get(path, "").status, 200, "{path}");
    }
    for headers in [
        "Authorization: Bearer secret\r\n",
        "authorization: bearer other\r\n",
        "Authorization: Bearer secret  \r\n",
        "X-API-Key: other\r\n",
    ] {
        assert_eq!(world.get("/v1/models", headers).status, 200, "{headers}");
        assert_eq!(world.get("/metrics", headers).status, 200, "{headers}");
    }
    let open = World::new(Behaviour::default(), |options| {
        options.api_keys = vec!["secret".into()];
        options.open_metrics = true;
    });
    assert_eq!(open.get("/metrics", "").status, 200);
    assert_eq!(open.get("/v1/models", "").status, 401);
}

#[test]
fn routes_and_methods_are_what_they_are() {
    let world = World::plain();
    world.get("/v1/no-such-route", "").check_error(404);
    let answer = world.get("/v1/completions", "");
    answer.check_error(405);
    assert_eq!(answer.header("allow"), Some("POST"));
    world.request("DELETE", "/v1/models", "").check_error(405);
    world.request("PUT", "/v1/models", "").check_error(405);
    world.request("BREW", "/health", "").check_error(405);
    let head = world.request("HEAD", "/v1/models", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(world.get("/v1/models/tiny", "").json()["id"], "tiny");
    world.get("/v1/models/big", "").check_error(404);
    assert_eq!(world.get("/version", "").json(), json!({"version": env!("CARGO_PKG_VERSION")}));
    let metrics = world.get("/metrics", "").body;
    assert!(metrics.contains("\nvllm:num_requests_waiting{model_name=\"tiny\",engine=\"0\"} 0\n"));
    assert!(metrics.contains(
        "http_requests_total{handler=\"/v1/models\",method=\"HEAD\",status=\"200\"} 1\n"
    ));
    assert!(metrics.contains("handler=\"other\""), "unknown paths are one handler");
    assert_eq!(world.request("POST", "/ping", "Content-Length: 0\r\n").status, 200);
}

#[test]
fn bodies_that_are_no_requests_are_refused_h33_o09() {
    let world = World::plain();
    let nested = format!("{{\"prompt\":\"a\",\"x\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let bodies: Vec<Vec<u8>> = vec![
        b"".into(),
        b"{:".into(),
        b"null".into(),
        b"[]".into(),
        b"42".into(),
        b"\"text\"".into(),
        b"{}".into(),
        b"\xff\xfe\x00".into(),
        "[".repeat(100_000).into(),
        nested.into(),
        b"{\"prompt\":\"\xc4\xe3\"}".into(),
        b"{\"prompt\":\"\\ud800\"}".into(),
        b"\xef\xbb\xbf{\"prompt\":\"a\"}".into(),
        b"{'prompt': 'x'}".into(),
        b"{\"prompt\":\"a\"} x".into(),
        b"{\"prompt\":\"a\"}{\"prompt\":\"b\"}".into(),
    ];
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"] {
        for body in &bodies {
            world.post(path, "", body).check_error(400);
        }
    }
    let nul = world.complete(&json!({"prompt": "a\u{0}b", "max_tokens": 2}));
    assert_eq!(nul.status, 200);
    let twice = world.post("/v1/completions", "", b"{\"prompt\":\"a\",\"prompt\":\"b\"}");
    assert_eq!(twice.status, 200, "the last one counts");
    world.comes_to_rest();
}

#[test]
fn bodies_have_a_type_an_encoding_and_a_size_o16() {
    let world = World::new(Behaviour::default(), |options| options.max_request_body_bytes = 5000);
    let body = br#"{"prompt":"a","max_tokens":1}"#;
    let send = |kind: &str| {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{kind}\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        Answer::parse(&world.raw(&[head.as_bytes(), body].concat()))
    };
    for fine in [
        "",
        "Content-Type: application/json\r\n",
        "Content-Type: Application/JSON; charset=utf-8\r\n",
        "Content-Type: application/vnd.api+json\r\n",
        "Content-Encoding: identity\r\n",
    ] {
        assert_eq!(send(fine).status, 200, "{fine}");
    }
    for wrong in [
        "Content-Type: text/plain\r\n",
        "Content-Type: multipart/form-data\r\n",
        "Content-Type: \r\n",
        "Content-Encoding: gzip\r\n",
        "Content-Encoding: identity\r\nContent-Encoding: br\r\n",
    ] {
        send(wrong).check_error(415);
    }
    let large = json!({"prompt": "a".repeat(6000)}).to_string();
    let error = world.post("/v1/completions", "", large.as_bytes()).check_error(413);
    assert!(error["message"].as_str().is_some_and(|text| text.contains("5000")));
    for more in ["", "Expect: 100-continue\r\n"] {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500000000\r\n{more}\r\n"
        );
        Answer::parse(&world.raw(head.as_bytes())).check_error(413);
    }
    let mut chunked =
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..3 {
        chunked.extend_from_slice(format!("7d0\r\n{}\r\n", " ".repeat(2000)).as_bytes());
    }
    Answer::parse(&world.raw(&chunked)).check_error(413);
    world.comes_to_rest();
}

#[test]
fn heads_have_a_size_and_a_time_o05() {
    let world = World::new(Behaviour::default(), |options| {
        options.keep_alive_timeout = Duration::from_millis(300);
        options.body_timeout = Duration::from_millis(300);
    });
    let long = "a".repeat(1 << 20);
    let status = |bytes: &[u8]| {
        let answer = world.raw(bytes);
        if answer.is_empty() { 0 } else { Answer::parse(&answer).status }
    };
    // The server may cut the connection while such a head is still being sent, and then the
    // answer is lost.
    let one = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {long}\r\n\r\n");
    assert!([431, 0].contains(&status(one.as_bytes())));
    let path = format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!([414, 431, 0].contains(&status(path.as_bytes())));
    let many: String = (0..1000).map(|i| format!("X-{i}: 1\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{many}\r\n");
    assert!([431, 0].contains(&status(many.as_bytes())));

    // These wait for the end of the connection, so a missing time limit fails by the client's.
    let start = Instant::now();
    assert_eq!(status(b"GET /health HTT"), 0);
    assert_eq!(status(b""), 0);
    let stalled = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
    Answer::parse(&world.raw(stalled)).check_error(408);
    assert!(start.elapsed() < LONG);
    world.comes_to_rest();
}

#[test]
fn bytes_that_are_no_http_do_no_harm() {
    let world = World::new(Behaviour::default(), |options| {
        options.keep_alive_timeout = Duration::from_millis(200);
        options.body_timeout = Duration::from_millis(200);
    });
    let post = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
    let known = [
        "\u{16}\u{3}\u{1}\u{2}".to_owned(),
        "GET\r\n\r\n".into(),
        "GET / HTTP/9.9\r\n\r\n".into(),
        "\r\n\r\n\r\n".into(),
        format!("{post}Content-Length: -1\r\n\r\n"),
        format!("{post}Content-Length: 1\r\nContent-Length: 2\r\n\r\n{{}}"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
        format!("{post}Transfer-Encoding: gzip\r\n\r\n"),
        format!("{post}X: a\u{0}b\r\n\r\n"),
        "GET /health HTTP/1.1\r\nHost: x\r\n X: folded\r\n\r\n".into(),
    ];
    for request in &known {
        let answer = world.raw(request.as_bytes());
        assert!(answer.is_empty() || Answer::parse(&answer).status >= 400, "{request:?}");
    }
    // Valid requests, damaged at random.
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_130_u64);
    eprintln!("SEED={seed}");
    let mut state = seed;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let valid = self::post(
        "/v1/completions",
        "Connection: close\r\n",
        br#"{"prompt":"abc","max_tokens":3,"stream":true,"n":2,"logprobs":2}"#,
    );
    for _ in 0..150 {
        let mut request = valid.clone();
        for _ in 0..=random(4) {
            let at = random(request.len());
            match random(4) {
                0 => request[at] = random(256) as u8,
                1 => request.truncate(at.max(1)),
                2 => request.insert(at, random(256) as u8),
                _ => {
                    request.remove(at);
                }
            }
            if request.len() < 2 {
                break;
            }
        }
        let answer = world.raw(&request);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{request:?}");
    }
    world.comes_to_rest();
}

#[test]
fn a_client_that_goes_away_takes_its_request_along() {
    let behaviour = Behaviour { pace: Duration::from_millis(1), ..Behaviour::default() };
    let world = World::new(behaviour, |_| {});
    for stream in [true, false] {
        let mut clients: Vec<TcpStream> = (0..8)
            .map(|_| {
                let body = json!({"prompt": "a", "max_tokens": 2000, "stream": stream, "n": 2});
                let mut client = world.connect();
                client
                    .write_all(&post("/v1/completions", "", body.to_string().as_bytes()))
                    .expect("sent");
                client
            })
            .collect();
        if stream {
            for client in &mut clients {
                client.read_exact(&mut [0; 300]).expect("the stream runs");
            }
        } else {
            let end = Instant::now() + LONG;
            while world.llm.stats().num_running == 0 {
                assert!(Instant::now() < end);
                std::thread::yield_now();
            }
        }
        drop(clients);
        world.comes_to_rest();
        let stats = world.llm.stats();
        assert!(stats.finished_total.abort > 0, "{stats:?}");
        assert!(stats.generation_tokens_total < 10_000, "{stats:?}");
    }
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let behaviour = Behaviour {
        pace: Duration::from_millis(1),
        max_num_queued: 2,
        max_num_seqs: 1,
        ..Behaviour::default()
    };
    let world = World::new(behaviour, |_| {});
    let body = json!({"prompt": "a", "max_tokens": 1500, "stream": true}).to_string();
    let mut waiting = Vec::new();
    let refused = loop {
        let mut client = world.connect();
        client.write_all(&post("/v1/completions", "", body.as_bytes())).expect("sent");
        let mut start = [0; 12];
        client.read_exact(&mut start).expect("a status");
        if &start[9..] == b"429" {
            let mut rest = start.to_vec();
            client.shutdown(Shutdown::Write).expect("nothing more is sent");
            client.read_to_end(&mut rest).expect("an answer");
            break Answer::parse(&rest);
        }
        waiting.push(client);
        assert!(waiting.len() < 10);
    };
    assert_eq!(refused.check_error(429)["type"], "rate_limit_error");
    let seconds: u64 = refused.header("retry-after").expect("a time").parse().expect("seconds");
    assert!(seconds >= 1);
    // The counters know of what runs after its first step; before that, all looks at rest.
    let end = Instant::now() + LONG;
    while world.llm.stats().num_running == 0 {
        assert!(Instant::now() < end, "nothing runs");
        std::thread::yield_now();
    }
    drop(waiting);
    world.comes_to_rest();
}

#[test]
fn request_ids_are_echoed_when_they_are_ids_o13() {
    let world = World::plain();
    let body = br#"{"prompt":"a","max_tokens":1}"#;
    let answer = world.post("/v1/completions", "X-Request-Id: my-id.1\r\n", body);
    assert_eq!(answer.header("x-request-id"), Some("my-id.1"));
    assert_eq!(answer.json()["id"], "cmpl-my-id.1");
    for wrong in ["a b", "\u{e9}", &"x".repeat(500), "<script>", "a\tb"] {
        let answer = world.post("/v1/completions", &format!("X-Request-Id: {wrong}\r\n"), body);
        assert_eq!(answer.status, 200);
        let id = answer.header("x-request-id").expect("an id of our own");
        assert!(id != wrong && id.len() == 32, "{id}");
    }
    let model = json!({"prompt": "a", "model": "line\r\nbreak \u{7f} \u{202e}"});
    world.complete(&model).check_error(404);
    let answer = world.post("/v1/completions", "", br#"{"prompt":"a","topk":1,"\r\nx: y":2}"#);
    assert_eq!(answer.header("x-pagedllm-ignored-params"), Some("topk"));
}

#[test]
fn pages_of_other_origins_are_denied_unless_listed() {
    let closed = World::plain();
    let origin = "Origin: https://a.example\r\n";
    assert_eq!(closed.get("/v1/models", origin).header("access-control-allow-origin"), None);
    let listed = World::new(Behaviour::default(), |options| {
        options.allowed_origins = vec!["https://a.example".into()];
        options.api_keys = vec!["k".into()];
    });
    let key = "Authorization: Bearer k\r\n";
    let answer = listed.get("/v1/models", &format!("{origin}{key}"));
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://a.example"));
    let answer = listed.get("/v1/models", &format!("Origin: https://b.example\r\n{key}"));
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let preflight = format!("{origin}Access-Control-Request-Method: POST\r\n");
    let answer = listed.request("OPTIONS", "/v1/completions", &preflight);
    assert_eq!(answer.status, 204, "a preflight has no key");
    assert!(
        answer.header("access-control-allow-methods").is_some_and(|list| list.contains("POST"))
    );
}

#[test]
fn connections_are_kept_and_bursts_wait_o03_o04() {
    let world = World::new(Behaviour::default(), |options| options.max_connections = 4);
    let mut client = world.connect();
    for _ in 0..3 {
        client.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("an answer");
            bytes.push(byte[0]);
        }
        assert_eq!(Answer::parse(&bytes).status, 200);
    }
    drop(client);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|_| {
                scope.spawn(|| world.complete(&json!({"prompt": "a", "max_tokens": 5})).status)
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().expect("a status"), 200);
        }
    });
}

#[test]
fn running_streams_end_and_new_ones_are_refused_while_draining_o02() {
    let behaviour = Behaviour { pace: Duration::from_millis(5), ..Behaviour::default() };
    let world = World::new(behaviour, |_| {});
    let body = json!({"prompt": "a", "max_tokens": 400, "stream": true}).to_string();
    let mut streams: Vec<TcpStream> = (0..5)
        .map(|_| {
            let mut client = world.connect();
            client.write_all(&post("/v1/completions", "", body.as_bytes())).expect("sent");
            client
        })
        .collect();
    for stream in &mut streams {
        stream.read_exact(&mut [0; 15]).expect("it runs");
    }
    let idle = world.connect();
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| world.handle.stop(LONG));
        let end = Instant::now() + LONG;
        while world.is_ready() {
            assert!(Instant::now() < end);
        }
        assert_eq!(world.get("/health", "").status, 200, "alive until the end");
        let refused = world.complete(&json!({"prompt": "a"}));
        refused.check_error(503);
        assert!(refused.header("retry-after").is_some());
        assert_eq!(refused.header("connection"), Some("close"));
        for mut stream in streams {
            let mut rest = String::new();
            stream.read_to_string(&mut rest).expect("it ends in order");
            assert!(rest.contains("data: [DONE]\n\n"), "{rest}");
        }
        stop.join().expect("it stops");
    });
    drop(idle);
    assert!(
        TcpStream::connect(world.address).is_err()
            || world.raw(b"GET /health HTTP/1.1\r\n\r\n").is_empty()
    );
}

#[test]
fn a_second_stop_ends_everything_with_an_error_o02() {
    let behaviour = Behaviour { pace: Duration::from_millis(5), ..Behaviour::default() };
    let world = World::new(behaviour, |_| {});
    let body = json!({"prompt": "a", "max_tokens": 2000, "n": 4, "stream": true}).to_string();
    let mut client = world.connect();
    client
        .write_all(&post("/v1/completions", "Connection: close\r\n", body.as_bytes()))
        .expect("sent");
    client.read_exact(&mut [0; 15]).expect("it runs");
    let start = Instant::now();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| world.handle.stop(Duration::from_secs(3600)));
        while world.is_ready() {
            assert!(start.elapsed() < LONG);
        }
        world.handle.stop(Duration::ZERO);
        first.join().expect("it stops");
    });
    assert!(start.elapsed() < LONG);
    let mut rest = String::new();
    client.read_to_string(&mut rest).expect("it ends in order");
    assert!(rest.contains("\"error\":{"), "{}", &rest[rest.len().saturating_sub(400)..]);
    assert!(!rest.contains("[DONE]"));
}

#[test]
fn a_unix_socket_serves_as_well() {
    let path = std::env::temp_dir().join(format!("pagedllm-test-{}.sock", std::process::id()));
    let stale = std::os::unix::net::UnixListener::bind(&path).expect("it binds");
    drop(stale);
    let world = World::new(Behaviour::default(), |options| options.uds = Some(path.clone()));
    let mut client = std::os::unix::net::UnixStream::connect(&path).expect("it accepts");
    client
        .write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an answer");
    assert_eq!(Answer::parse(&answer).status, 200);
    drop(world);
    assert!(!path.exists(), "nothing is left behind");
}

#[test]
fn a_taken_port_is_an_error() {
    let world = World::plain();
    let options = ServerOptions {
        host: "127.0.0.1".into(),
        port: world.address.port(),
        ..ServerOptions::default()
    };
    let error = Server::start(world.llm.clone(), options).expect_err("taken");
    assert!(error.to_string().contains("can't listen"), "{error}");
}

#[test]
fn silent_streams_get_comments_when_asked_for() {
    let behaviour = Behaviour { pace: Duration::from_millis(300), ..Behaviour::default() };
    let world = World::new(behaviour, |options| {
        options.sse_keep_alive_interval = Duration::from_millis(20);
    });
    let answer = world.complete(&json!({"prompt": "a", "max_tokens": 2, "stream": true}));
    assert!(answer.body.starts_with(": keep-alive\n\n"), "{}", answer.body);
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
}

#[test]
fn a_dead_engine_fails_its_probes_and_nothing_hangs() {
    let behaviour = Behaviour { fails_at: Some(5), ..Behaviour::default() };
    let world = World::new(behaviour, |_| {});
    let stream = world.complete(&json!({"prompt": "a", "max_tokens": 50, "stream": true}));
    assert!(stream.body.contains("\"error\":{") && !stream.body.contains("secret"), "{stream:?}");
    world.complete(&json!({"prompt": "a"})).check_error(500);
    assert_eq!(world.get("/health", "").status, 503);
    assert_eq!(world.get("/ready", "").status, 503);
    assert_eq!(world.get("/metrics", "").status, 200);
    world.handle.stop(LONG);
}

#[test]
fn large_bodies_take_turns_and_all_are_read() {
    let world = World::new(Behaviour::default(), |options| {
        options.max_request_body_bytes = 300 << 20;
    });
    // Each announces most of what all together may hold, so they are read one after the other.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let prompt = json!({"prompt": "a", "max_tokens": 1}).to_string();
                    let body = format!("{prompt}{}", " ".repeat(8 << 20));
                    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                        Transfer-Encoding: chunked\r\n\r\n";
                    let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
                    Answer::parse(&world.raw(format!("{head}{chunk}").as_bytes())).status
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().expect("a status"), 200);
        }
    });
}
