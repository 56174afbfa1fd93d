//! Reading a body within its limits.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use pagedllm_openai::ApiError;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

/// How long a whole body may take, however steadily it drips.
const WHOLE_BODY: Duration = Duration::from_secs(300);

/// Refuses a body by its head alone.
pub(crate) fn check_head(
    headers: &HeaderMap,
    announced: u64,
    max_bytes: usize,
) -> Result<(), ApiError> {
    if announced > max_bytes as u64 {
        return Err(too_large(max_bytes));
    }
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        let message = "the body must come without a content-encoding";
        return Err(ApiError::new(415, "invalid_request_error", message));
    }
    if !headers.get(CONTENT_TYPE).is_none_or(is_json) {
        let message = "the content-type must be application/json";
        return Err(ApiError::new(415, "invalid_request_error", message));
    }
    Ok(())
}

fn is_json(value: &HeaderValue) -> bool {
    let kind = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    let kind = kind.trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// Bytes that all bodies together may hold while they are read and parsed. A body takes its share
/// before its first byte is read, so bodies can't wait for each other; what is small is not
/// counted.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    units: Semaphore,
    largest: u64,
}

impl BodyMemory {
    const UNIT: u64 = 64 << 10;
    const TOTAL: u64 = 256 << 20;

    pub(crate) fn new(max_bytes: usize) -> Self {
        let largest = (max_bytes as u64).div_ceil(Self::UNIT).min(u64::from(u32::MAX));
        let units = largest.max(Self::TOTAL / Self::UNIT) as usize;
        Self { units: Semaphore::new(units.min(Semaphore::MAX_PERMITS)), largest }
    }

    /// Waits for room for a body; one without an announced size counts as the largest.
    pub(crate) async fn reserve(
        &self,
        announced: Option<u64>,
    ) -> Result<Option<SemaphorePermit<'_>>, ApiError> {
        let units = announced.map_or(self.largest, |bytes| bytes / Self::UNIT).min(self.largest);
        if units == 0 {
            return Ok(None);
        }
        match timeout(WHOLE_BODY, self.units.acquire_many(units as u32)).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            _ => Err(ApiError::new(503, "service_unavailable_error", "too many large bodies")),
        }
    }
}

/// Reads a whole body of at most `max_bytes`, with pauses of at most `pause`.
pub(crate) async fn read_body(
    mut body: Incoming,
    max_bytes: usize,
    pause: Duration,
) -> Result<Bytes, ApiError> {
    let end = Instant::now() + WHOLE_BODY;
    let announced = body.size_hint().lower().min(max_bytes as u64) as usize;
    let mut whole = BytesMut::new();
    loop {
        let frame = match timeout_at(end, timeout(pause, body.frame())).await {
            Ok(Ok(frame)) => frame,
            _ => {
                let message = "the body did not come in time";
                return Err(ApiError::new(408, "timeout_error", message));
            }
        };
        let Some(frame) = frame else { return Ok(whole.freeze()) };
        let frame = frame.map_err(|_| ApiError::malformed("the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > max_bytes {
            return Err(too_large(max_bytes));
        }
        if whole.is_empty() {
            if data.len() == announced {
                return finish(data, body, end).await;
            }
            // Announced is not yet sent: only what comes is held, but for one block ahead.
            whole.reserve(announced.min(1 << 20));
        }
        whole.extend_from_slice(&data);
    }
}

/// The common case, a body in one piece: nothing is copied.
async fn finish(data: Bytes, mut body: Incoming, end: Instant) -> Result<Bytes, ApiError> {
    match timeout_at(end, body.frame()).await {
        Ok(None) => Ok(data),
        Ok(Some(Ok(frame))) if frame.is_trailers() => Ok(data),
        _ => Err(ApiError::malformed("the body is longer than announced")),
    }
}

fn too_large(max_bytes: usize) -> ApiError {
    let message = format!("the body is larger than {max_bytes} bytes");
    ApiError::new(413, "invalid_request_error", message).with_code("request_too_large")
}
