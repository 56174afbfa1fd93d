//! A small HTTP client: one connection a request, streamed answers.

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

/// Where a server is, and the key to it.
#[derive(Clone, Debug)]
pub(super) struct Client {
    authority: String,
    key: Option<String>,
}

/// What one streamed request took.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Send to first text.
    pub(super) first: Duration,
    /// Between pieces of text.
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
        Ok(Self { authority: format!("{}:{port}", authority.host()), key })
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<hyper::Response<Incoming>> {
        let stream = TcpStream::connect(&self.authority).await.context(self.authority.clone())?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
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
        let answer = self.send("GET", path, Vec::new()).await?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&bytes));
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Sends a streamed completion and reads it to its end.
    pub(super) async fn complete(&self, path: &str, body: &Value) -> anyhow::Result<Measured> {
        let start = Instant::now();
        let answer = self.send("POST", path, body.to_string().into_bytes()).await?;
        let status = answer.status();
        let mut frames = answer.into_body();
        if !status.is_success() {
            let bytes = frames.collect().await?.to_bytes();
            bail!("{status}: {}", String::from_utf8_lossy(&bytes));
        }
        let mut measured = Measured::default();
        let mut last: Option<Instant> = None;
        let mut buffer: Vec<u8> = Vec::new();
        let mut is_done = false;
        while let Some(frame) = frames.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            buffer.extend_from_slice(&data);
            ensure!(buffer.len() <= MAX_LINE, "a line is longer than {MAX_LINE} bytes");
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let Some(payload) = line.strip_prefix(b"data: ") else { continue };
                if payload.trim_ascii() == b"[DONE]" {
                    is_done = true;
                    continue;
                }
                let chunk: Value = serde_json::from_slice(payload)?;
                if let Some(error) = chunk.get("error") {
                    bail!("the stream broke off: {error}");
                }
                if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
                    let number = |name: &str| usage[name].as_u64().unwrap_or(0) as usize;
                    measured.tokens_in = number("prompt_tokens");
                    measured.tokens_out = number("completion_tokens");
                }
                if has_text(&chunk) {
                    let now = Instant::now();
                    match last {
                        None => measured.first = now - start,
                        Some(last) => measured.gaps.push(now - last),
                    }
                    last = Some(now);
                }
            }
        }
        ensure!(is_done, "the stream ended without [DONE]");
        measured.whole = start.elapsed();
        Ok(measured)
    }
}

fn has_text(chunk: &Value) -> bool {
    let choice = &chunk["choices"][0];
    let text = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
    text.is_some_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

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
