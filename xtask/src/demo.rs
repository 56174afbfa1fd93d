//! `cargo xtask demo`: from a fresh checkout to an answer of a real model.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::models;
use crate::shell::{command, run as run_command};

const PORT: u16 = 8765;
const START_LIMIT: Duration = Duration::from_secs(60);
const QUESTION: &str = "What is gravity?";

/// Builds, fetches, serves, asks, and shows the answer as it comes.
pub fn run() -> Result<()> {
    run_command(&mut command("cargo build --release --package pagedllm-cli"))?;
    let model = models::smollm2()?;
    println!("$ target/release/pagedllm serve {} --port {PORT}", model.display());
    let server = command("target/release/pagedllm serve")
        .arg(&model)
        .args(["--host", "127.0.0.1", "--port", &PORT.to_string(), "--log-level", "warning"])
        .args(["--served-model-name", "SmolLM2-135M-Instruct"])
        .stdin(Stdio::null())
        .spawn()
        .context("can't start the server")?;
    let mut server = Running(server);
    wait_until_ready(&mut server)?;
    let body = format!(
        r#"{{"model":"SmolLM2-135M-Instruct","stream":true,"temperature":0,"max_tokens":64,"messages":[{{"role":"user","content":"{QUESTION}"}}]}}"#
    );
    println!("\n> {QUESTION}");
    let start = Instant::now();
    let tokens = stream_answer(&body)?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "\n\n{tokens} chunks in {seconds:.2} s. Serve again with the line above to ask with curl:"
    );
    println!(
        "  curl -N http://127.0.0.1:{PORT}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"
    );
    Ok(())
}

/// The server, stopped when the demo ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn request(head: &str, body: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", PORT))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "{head} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    Ok(stream)
}

fn wait_until_ready(server: &mut Running) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < START_LIMIT {
        if let Some(status) = server.0.try_wait()? {
            bail!("the server ended: {status}");
        }
        if let Ok(mut stream) = request("GET /ready", "") {
            let mut head = [0; 12];
            if stream.read_exact(&mut head).is_ok() && &head == b"HTTP/1.1 200" {
                println!("ready after {:.2} s", start.elapsed().as_secs_f64());
                return Ok(());
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("the server was not ready after {START_LIMIT:?}")
}

/// Prints the text of each event as it comes; returns how many there were.
fn stream_answer(body: &str) -> Result<usize> {
    let stream = request("POST /v1/chat/completions", body)?;
    let mut chunks = 0;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let Some(data) = line.strip_prefix("data: ") else {
            if line.contains("\"error\"") {
                bail!("the server answered {line}");
            }
            continue;
        };
        if data == "[DONE]" {
            return Ok(chunks);
        }
        let chunk: serde_json::Value = serde_json::from_str(data)?;
        if let Some(text) = chunk["choices"][0]["delta"]["content"].as_str() {
            print!("{text}");
            std::io::stdout().flush()?;
            chunks += 1;
        }
    }
    bail!("the stream broke off after {chunks} chunks")
}
