//! Time of events through the Rust API, to compare the C library and the bindings with:
//! `overhead MODEL OPTIONS STREAMS TOKENS`, see `benches/ffi`. The engine is that of the feature
//! `test-executor`.

#![allow(clippy::print_stdout, reason = "the numbers are the result")]

#[path = "../src/test_executor.rs"]
mod test_executor;

use std::time::{Duration, Instant};

use pagedllm::{Options, Prompt, SamplingParams, TextEvent, TextRequest};

/// What the file above needs of the library.
mod error {
    #[derive(Debug)]
    pub(crate) struct Failure(#[allow(dead_code, reason = "printed")] String);

    impl Failure {
        pub(crate) fn new(_: i32, message: impl Into<String>) -> Self {
            Self(message.into())
        }
    }
}
mod status {
    pub(crate) const PAGEDLLM_MODEL_ERROR: i32 = 24;
}

/// Processor time of all threads so far, in hundredths of a second.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let after_name = stat.rsplit(')').next().expect("fields");
    let fields = after_name.split_whitespace().skip(11).take(2);
    Duration::from_millis(
        10 * fields.map(|ticks| ticks.parse::<u64>().expect("ticks")).sum::<u64>(),
    )
}

fn main() {
    // `cargo bench` adds a flag of its own.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let [model, overlay, streams, tokens] = args.as_slice() else {
        eprintln!("usage: overhead MODEL OPTIONS STREAMS TOKENS");
        return;
    };
    let (count, tokens): (usize, u32) =
        (streams.parse().expect("a number"), tokens.parse().expect("a number"));
    let mut options = Options::new(model);
    let overlay: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(overlay).expect("a JSON object");
    for (name, value) in overlay {
        options.set(&name, &value.to_string()).expect("an option");
    }
    let llm = test_executor::open(&options).expect("a tokenizer").expect("test-executor:FOLDER");
    let request = || TextRequest {
        sampling: SamplingParams {
            max_tokens: tokens,
            temperature: 0.0,
            ignore_eos: true,
            ..SamplingParams::default()
        },
        ..TextRequest::new(Prompt::TokenIds(vec![1]))
    };
    let (start, cpu_start) = (Instant::now(), cpu_time());
    let streams: Vec<_> =
        (0..count).map(|_| llm.generate(request()).expect("a place in the queue")).collect();
    let mut seen = 0;
    for event in streams.into_iter().flatten() {
        if let TextEvent::Text { tokens, .. } = event {
            seen += tokens.len();
        }
    }
    let (wall, cpu) = (start.elapsed().as_secs_f64(), (cpu_time() - cpu_start).as_secs_f64());
    println!("{{\"tokens\": {seen}, \"wall_s\": {wall:.6}, \"cpu_s\": {cpu:.6}}}");
    assert_eq!(seen, count * tokens as usize);
}
