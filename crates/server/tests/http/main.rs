//! The server over real sockets, with a model without weights. What clients send here is raw
//! bytes, good and bad; after each kind the server must answer others and hold nothing.

mod connections;
mod requests;
mod shutdown;
#[path = "../../../openai/tests/support/mod.rs"]
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
