//! The program as its users start it, on a tiny model.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn model() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tiny/llama").to_owned()
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagedllm"));
    command.args(arguments).stdin(Stdio::null());
    for variable in ["PAGEDLLM_API_KEY", "VLLM_API_KEY", "RUST_LOG", "PAGEDLLM_LOG_LEVEL"] {
        command.env_remove(variable);
    }
    command
}

fn run(arguments: &[&str]) -> Output {
    program(arguments).output().expect("it starts")
}

/// What it says on standard error when it fails.
fn failure(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    String::from_utf8(output.stderr).expect("text")
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("pagedllm-cli-{}-{name}", std::process::id()));
    std::fs::write(&path, text).expect("it can be written");
    path
}

/// A server that is ended with the test.
struct Served {
    child: Child,
    address: String,
    log: String,
}

impl Served {
    fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut log = String::new();
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {log}")).expect("text");
            log.push_str(&line);
            log.push('\n');
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.trim().to_owned();
            }
        };
        // Whatever it says later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, log }
    }

    fn ask(&self, path: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it accepts");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
        let method = if body.is_empty() { "GET" } else { "POST" };
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Sends SIGTERM and returns the exit code.
    fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_launch_line_of_vllm_works_flag_by_flag() {
    let model = model();
    let served = Served::start(program(&[
        "serve",
        "--model",
        &model,
        "--tokenizer",
        &model,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--dtype",
        "float32",
        "--quantization",
        "None",
        "--max-model-len",
        "256",
        "--max-num-seqs",
        "4",
        "--max_num_batched_tokens",
        "64",
        "--gpu-memory-utilization",
        "0.9",
        "--tensor-parallel-size",
        "1",
        "--enable-prefix-caching",
        "--scheduler-delay-factor",
        "0.1",
        "--use-v2-block-manager",
        "--enforce-eager",
        "--api-key",
        "K",
        "--log-level",
        "info",
        "--kv-cache-memory-bytes",
        "4M",
        "--device",
        "cpu",
    ]));
    for ignored in ["--scheduler-delay-factor", "--use-v2-block-manager"] {
        assert_eq!(served.log.matches(ignored).count(), 1, "one warning: {}", served.log);
    }
    assert!(served.log.contains("at most 4 run at once, 64 tokens a step"), "{}", served.log);
    assert!(served.log.contains("sequences of 256 tokens fit"), "{}", served.log);
    assert!(!served.log.contains("no API key"), "{}", served.log);
    let key = "Authorization: Bearer K\r\n";
    assert!(served.ask("/v1/models", "", "").starts_with("HTTP/1.1 401"));
    let models = served.ask("/v1/models", key, "");
    assert!(
        models.contains("\"id\":\"llama\"") && models.contains("\"max_model_len\":256"),
        "{models}"
    );
    let body =
        format!("{{\"model\":\"{model}\",\"prompt\":\"the\",\"max_tokens\":5,\"stream\":true}}");
    let answer = served.ask("/v1/completions", key, &body);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("data: [DONE]"), "{answer}");
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn line_wins_over_environment_and_environment_over_file() {
    let config = file(
        "config.yaml",
        &format!(
            "model: {}\nhost: 127.0.0.1\nport: 0\nmax-num-seqs: 3\nmax_model_len: 100\n\
            served-model-name: [a, b]\nmax-num-batched-tokens: 32\ndevice: cpu\n",
            model()
        ),
    );
    let config = config.to_str().expect("text");
    let mut command = program(&["serve", "--config", config, "--max-num-batched-tokens", "48"]);
    command.env("PAGEDLLM_MAX_NUM_SEQS", "5").env("PAGEDLLM_MAX_NUM_BATCHED_TOKENS", "40");
    command.env("VLLM_API_KEY", "from-env");
    let served = Served::start(command);
    assert!(served.log.contains("at most 5 run at once, 48 tokens a step"), "{}", served.log);
    assert!(served.log.contains("sequences of 100 tokens fit"), "{}", served.log);
    let models = served.ask("/v1/models", "X-Api-Key: from-env\r\n", "");
    assert!(models.contains("\"id\":\"a\"") && models.contains("\"id\":\"b\""), "{models}");
    assert_eq!(served.terminate(), Some(0));
    let wrong = file("wrong.yaml", "max-num-sequences: 3\n");
    let error = failure(&["serve", "--config", wrong.to_str().expect("text")]);
    assert!(error.contains("max-num-sequences"), "{error}");
}

#[test]
fn an_open_server_warns_and_an_empty_key_is_none() {
    let model = model();
    let served = Served::start(program(&[
        "serve",
        &model,
        "--host",
        "0.0.0.0",
        "--port",
        "0",
        "--api-key",
        "",
        "--device",
        "cpu",
    ]));
    // The warning comes before the address.
    assert!(served.log.contains("no API key is set"), "{}", served.log);
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn mistakes_name_the_option_and_the_nearest_one() {
    let model = model();
    for (arguments, word) in [
        (vec!["serve", &model, "--max-num-sequ", "1"], "--max-num-seqs"),
        (vec!["serve", &model, "--dtype", "int3"], "--dtype"),
        (vec!["serve", &model, "--port", "70000"], "--port"),
        (vec!["serve", &model, "--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization"),
        (vec!["serve", &model, "--quantization", "awq"], "awq"),
        (vec!["serve", &model, "--quantization", "gptq"], "gptq"),
        (vec!["serve", &model, "--quantization", "gguf"], "gguf"),
        (
            vec!["serve", &model, "--tensor-parallel-size", "2", "--device", "cpu"],
            "tensor-parallel-size",
        ),
        (vec!["serve", &model, "--log-level", "loud"], "--log-level"),
        (vec!["serve", &model, "--max-model-len", "999999999"], "max-model-len"),
        (vec!["serve"], "no model"),
        (vec!["serve", "/no/such/model"], "/no/such/model"),
        (vec!["inspect", "/no/such/model"], "/no/such/model"),
    ] {
        let mut arguments = arguments;
        // The port of the default may be taken, which would be the mistake that is named.
        if arguments[0] == "serve" && !arguments.contains(&"--port") {
            arguments.extend(["--port", "0"]);
        }
        let error = failure(&arguments);
        assert!(error.contains(word), "{arguments:?}: {error}");
        assert!(!error.contains("panicked"), "{error}");
    }
}

#[test]
fn run_answers_a_pipe_and_a_prompt() {
    let model = model();
    let flags =
        ["--temperature", "0", "--max-tokens", "8", "--dtype", "float32", "--device", "cpu"];
    let from_line = run(&[&["run", &model][..], &flags, &["the", "house"]].concat());
    assert!(from_line.status.success(), "{from_line:?}");
    assert!(from_line.stdout.ends_with(b"\n") && from_line.stdout.len() > 1, "{from_line:?}");
    let mut child = program(&[&["run", &model][..], &flags].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("a pipe").write_all(b"the house\n").expect("sent");
    let from_pipe = child.wait_with_output().expect("it ends");
    assert_eq!(from_pipe.stdout, from_line.stdout);
}

#[test]
fn inspect_and_bench_report_as_json() {
    let model = model();
    let output = run(&["inspect", &model, "--json", "--memory", "1G"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(found["format"], "safetensors");
    assert_eq!(found["architecture"], "LlamaForCausalLM");
    assert_eq!(found["context_that_fits"], found["context_length"]);

    let path = file("latency.json", "");
    let path = path.to_str().expect("text");
    let sizes = ["--input-len", "8", "--output-len", "4", "--num-iters", "2", "--device", "cpu"];
    let common = ["--output-json", path, "--model", &model];
    let read = || -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
    };
    assert!(run(&[&["bench", "latency"][..], &sizes, &common].concat()).status.success());
    assert_eq!(read()["latencies"].as_array().expect("samples").len(), 2);
    let kind = ["bench", "throughput", "--num-prompts", "6"];
    assert!(run(&[&kind[..], &sizes, &common].concat()).status.success());
    assert_eq!(read()["output_num_tokens"], 24);

    let served = Served::start(program(&[
        "serve",
        &model,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--device",
        "cpu",
    ]));
    let url = format!("http://{}", served.address);
    let output = run(&[
        "bench",
        "serve",
        "--base-url",
        &url,
        "--num-prompts",
        "5",
        "--input-len",
        "3",
        "--output-len",
        "4",
        "--max-concurrency",
        "2",
        "--output-json",
        path,
    ]);
    assert!(output.status.success(), "{output:?}");
    let result = read();
    assert_eq!((&result["completed"], &result["failed"]), (&5.into(), &0.into()));
    assert_eq!(result["total_output_tokens"], 20);
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn made_up_weights_are_served_without_a_tokenizer() {
    let shape = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/shapes/tiny");
    let dummy = ["--load-format", "dummy", "--skip-tokenizer-init", "--device", "cpu"];
    let address = ["--host", "127.0.0.1", "--port", "0"];
    let ask = || {
        let served = Served::start(program(&[&["serve", shape][..], &dummy, &address].concat()));
        assert!(served.log.contains("KV cache"), "{}", served.log);
        let body = r#"{"prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": true, "temperature": 0,
            "return_token_ids": true}"#;
        let answer = served.ask("/v1/completions", "", body);
        let answer: serde_json::Value =
            serde_json::from_str(answer.split("\r\n\r\n").last().expect("a body")).expect("JSON");
        let path = file("random.json", "");
        let path = path.to_str().expect("text");
        let url = format!("http://{}", served.address);
        for stream in ["--stream=true", "--stream=false"] {
            let load = ["bench", "serve", "--base-url", &url, "--token-ids", stream];
            let sizes = ["--num-prompts", "6", "--random-input-len", "2..9"];
            let more = ["--random-output-len", "4", "--random-prefix-len", "32"];
            let output = ["--max-concurrency", "3", "--output-json", path];
            let done = run(&[&load[..], &sizes, &more, &output].concat());
            assert!(done.status.success(), "{done:?}");
            let result: serde_json::Value =
                serde_json::from_str(&std::fs::read_to_string(path).expect("a file"))
                    .expect("JSON");
            assert_eq!((&result["completed"], &result["failed"]), (&6.into(), &0.into()));
            assert_eq!(result["total_output_tokens"], 24);
            assert_eq!(result["median_ttft_ms"].is_null(), stream == "--stream=false");
        }
        let metrics = served.ask("/metrics", "", "");
        assert!(!metrics.contains("gpu_memory"), "there is no GPU in use");
        assert_eq!(served.terminate(), Some(0));
        answer["choices"][0]["token_ids"].clone()
    };
    let first = ask();
    assert_eq!(first.as_array().map(Vec::len), Some(8), "{first}");
    assert_eq!(ask(), first, "the weights are the same in every run");
    let needs_ids = failure(&["bench", "latency", shape, "--load-format", "dummy"]);
    assert!(needs_ids.contains("skip-tokenizer-init"), "{needs_ids}");
}
