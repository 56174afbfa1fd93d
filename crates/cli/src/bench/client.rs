//! A small HTTP client: kept connections, answers whole or streamed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Longest line of a stream.
const MAX_LINE: usize = 16 << 20;

/// The sending half of a connection.
type Sender = http1::SendRequest<Full<Bytes>>;

/// Where a server is, and the key to it. Clones share connections.
#[derive(Clone, Debug)]
pub(super) struct Client {
    authority: String,
    key: Option<String>,
    /// Connections whose last answer was read to its end.
    idle: Arc<Mutex<Vec<Sender>>>,
}

/// What one request took.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Send to first token; `None` where the answer came whole.
    pub(super) first: Option<Duration>,
    /// Between pieces of a streamed answer.
    pub(super) gaps: Vec<Duration>,
    /// Send to end.
    pub(super) whole: Duration,
    pub(super) tokens_in: usize,
    pub(super) tokens_out: usize,
}

impl Client {
    /// `http://host:port`, with or without a path, which is not used.
    pub(super) fn new(url: &str, key: Option<String>) -> anyhow::Result<Self> {
        let url: hyper::Uri = url.parse().with_context(|| format!("--base-url: {url}"))?;
        ensure!(url.scheme_str() == Some("http"), "--base-url: only http:// is spoken");
        let authority = url.authority().context("--base-url: has no host")?;
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self { authority: format!("{}:{port}", authority.host()), key, idle: Arc::default() })
    }

    /// A connection that is ready for a request.
    async fn connect(&self) -> anyhow::Result<Sender> {
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut sender) = kept else { break };
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let stream = TcpStream::connect(&self.authority).await.context(self.authority.clone())?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Gives a connection back whose answer was read to its end.
    fn keep(&self, sender: Sender) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    }

    async fn send(
        &self,
        sender: &mut Sender,
        method: &str,
        path: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<hyper::Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        Ok(sender.send_request(request.body(Full::new(Bytes::from(body)))?).await?)
    }

    /// A whole answer as JSON.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut sender = self.connect().await?;
        let answer = self.send(&mut sender, "GET", path, Vec::new()).await?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&bytes));
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Sends a completion and reads it to its end.
    pub(super) async fn complete(&self, path: &str, body: &Value) -> anyhow::Result<Measured> {
        let text = body.to_string().into_bytes();
        let start = Instant::now();
        let mut sender = self.connect().await?;
        let answer = self.send(&mut sender, "POST", path, text).await?;
        let status = answer.status();
        let frames = answer.into_body();
        let mut measured = Measured::default();
        if !status.is_success() || body["stream"] != true {
            let bytes = frames.collect().await?.to_bytes();
            ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&bytes));
            measured.count(&serde_json::from_slice(&bytes)?);
        } else {
            measured.read(frames, start).await?;
        }
        measured.whole = start.elapsed();
        self.keep(sender);
        Ok(measured)
    }
}

impl Measured {
    /// Reads a stream to its end.
    async fn read(&mut self, mut frames: Incoming, start: Instant) -> anyhow::Result<()> {
        let mut last: Option<Instant> = None;
        let mut buffer: Vec<u8> = Vec::new();
        let mut is_done = false;
        while let Some(frame) = frames.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            buffer.extend_from_slice(&data);
            ensure!(buffer.len() <= MAX_LINE, "a line is longer than {MAX_LINE} bytes");
            let mut begin = 0;
            while let Some(len) = buffer[begin..].iter().position(|byte| *byte == b'\n') {
                let line = &buffer[begin..begin + len];
                begin += len + 1;
                let Some(payload) = line.strip_prefix(b"data: ") else { continue };
                if payload.trim_ascii() == b"[DONE]" {
                    is_done = true;
                    continue;
                }
                let chunk: Value = serde_json::from_slice(payload)?;
                if let Some(error) = chunk.get("error") {
                    bail!("the stream broke off: {error}");
                }
                self.count(&chunk);
                if has_tokens(&chunk) {
                    let now = Instant::now();
                    match last {
                        None => self.first = Some(now - start),
                        Some(last) => self.gaps.push(now - last),
                    }
                    last = Some(now);
                }
            }
            buffer.drain(..begin);
        }
        ensure!(is_done, "the stream ended without [DONE]");
        Ok(())
    }

    /// Takes the numbers of tokens, where an answer or a chunk has them.
    fn count(&mut self, answer: &Value) {
        if let Some(usage) = answer.get("usage").filter(|usage| usage.is_object()) {
            let number = |name: &str| usage[name].as_u64().unwrap_or(0) as usize;
            self.tokens_in = number("prompt_tokens");
            self.tokens_out = number("completion_tokens");
        }
    }
}

/// Whether a chunk brings tokens. A server without a tokenizer sends no text; the chunk that says
/// why an answer ended brings none, and one of a chat may only say who speaks.
fn has_tokens(chunk: &Value) -> bool {
    let choice = &chunk["choices"][0];
    let Some(text) = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str()) else {
        return false;
    };
    !text.is_empty() || (choice["finish_reason"].is_null() && choice["delta"]["role"].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_with_tokens_are_told_from_those_without() {
        let has = |text: &str| has_tokens(&serde_json::from_str(text).expect("JSON"));
        assert!(has(r#"{"choices": [{"text": "a", "finish_reason": null}]}"#));
        assert!(has(r#"{"choices": [{"text": "a", "finish_reason": "length"}]}"#));
        assert!(has(r#"{"choices": [{"text": "", "finish_reason": null}]}"#));
        assert!(!has(r#"{"choices": [{"text": "", "finish_reason": "length"}]}"#));
        assert!(!has(r#"{"choices": [{"delta": {"role": "assistant", "content": ""}}]}"#));
        assert!(has(r#"{"choices": [{"delta": {"content": "a"}}]}"#));
        assert!(!has(r#"{"choices": [], "usage": {"prompt_tokens": 1}}"#));
    }

    #[test]
    fn urls_have_a_scheme_and_a_host() {
        let authority = |url| Client::new(url, None).map(|client| client.authority).ok();
        assert_eq!(authority("http://a:1/v1").as_deref(), Some("a:1"));
        assert_eq!(authority("http://a").as_deref(), Some("a:80"));
        for wrong in ["a:1", "https://a", "/v1", "", "http://"] {
            assert_eq!(authority(wrong), None, "{wrong}");
        }
    }
}
