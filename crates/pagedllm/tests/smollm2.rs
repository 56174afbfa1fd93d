//! The real model against transformers, in float32: greedy tokens and texts of every golden
//! prompt, plain, batched together, chunked, with a prefix hit, and under preemption.

use std::path::PathBuf;

use pagedllm::{
    ChatPrompt, FinishReason, Llm, Options, Prompt, SamplingParams, TextEvent, TextRequest, TokenId,
};
use serde_json::Value;

/// The model's path, if the tests were told where models are.
fn model() -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("PAGEDLLM_MODELS") else {
        eprintln!("skipped: no model (PAGEDLLM_MODELS is not set)");
        return None;
    };
    Some(PathBuf::from(folder).join("SmolLM2-135M-Instruct.Q4_1.gguf"))
}

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/smollm2.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect(path)).expect("JSON")
}

fn open(path: &PathBuf, settings: &[(&str, &str)]) -> Llm {
    let mut options = Options::new(path);
    for (name, value) in [("dtype", "float32"), ("device", "cpu")].iter().chain(settings) {
        options.set(name, value).expect(name);
    }
    Llm::open(&options, &mut |_| true).expect("the model opens")
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("id") as TokenId).collect()
}

fn greedy(prompt: Prompt, max_tokens: usize) -> TextRequest {
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens: max_tokens as u32,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    TextRequest { sampling, skip_special_tokens: false, ..TextRequest::new(prompt) }
}

/// All prompts at once; every token must be the golden one, every text its decoding.
fn check(llm: &Llm, way: &str) {
    let golden = golden();
    let cases = golden["greedy"].as_array().expect("cases");
    assert!(cases.len() >= 20);
    let streams: Vec<_> = cases
        .iter()
        .map(|case| {
            let want = ids(&case["output_ids"]);
            assert_eq!(want.len(), 64);
            let request = greedy(Prompt::TokenIds(ids(&case["prompt_ids"])), want.len());
            llm.generate(request).expect("the request is fine")
        })
        .collect();
    for (case, stream) in cases.iter().zip(streams) {
        let name = &case["name"];
        let (mut tokens, mut text) = (Vec::new(), String::new());
        for event in stream {
            match event {
                TextEvent::Text { text: piece, tokens: new, .. } => {
                    text.push_str(&piece);
                    tokens.extend(new.iter().map(|token| token.token));
                }
                TextEvent::Finished { reason, .. } => assert_eq!(reason, FinishReason::Length),
                TextEvent::Prompt { .. } => panic!("not asked for"),
            }
        }
        assert_eq!(tokens, ids(&case["output_ids"]), "{name}, {way}");
        assert_eq!(text, case["output_text"].as_str().expect("text"), "{name}, {way}");
    }
}

#[test]
fn tokens_are_those_of_transformers_together_and_with_cached_prefixes() {
    let Some(path) = model() else { return };
    let llm = open(&path, &[("max-model-len", "1024")]);
    check(&llm, "together");
    check(&llm, "prefix cached");
    assert!(llm.stats().prefix_hits_tokens_total > 1000, "the second round must hit");
}

#[test]
fn tokens_are_those_of_transformers_one_at_a_time_and_in_chunks() {
    let Some(path) = model() else { return };
    let llm = open(
        &path,
        &[("max-model-len", "1024"), ("max-num-seqs", "1"), ("max-num-batched-tokens", "48")],
    );
    check(&llm, "one at a time, in chunks of 48");
}

#[test]
fn tokens_are_those_of_transformers_under_preemption() {
    let Some(path) = model() else { return };
    // 64 blocks of 16 tokens: one long prompt and little more.
    let bytes = (64 * 16 * 2 * 30 * 3 * 64 * 4).to_string();
    let llm = open(&path, &[("max-model-len", "1024"), ("kv-cache-memory-bytes", &bytes)]);
    check(&llm, "preempted");
    assert!(llm.stats().preemptions_total > 0, "the pool is too large for this test");
    assert_eq!(llm.stats().num_blocks_used, 0, "every block came back");
}

#[test]
fn prompts_are_encoded_and_rendered_as_by_transformers() {
    let Some(path) = model() else { return };
    let llm = open(&path, &[("max-model-len", "1024")]);
    for case in golden()["greedy"].as_array().expect("cases") {
        let got = match case["prompt"].as_str() {
            Some(text) => llm.encode(text, true).expect("text"),
            None => {
                let messages = case["messages"].as_array().expect("messages").clone();
                let chat =
                    ChatPrompt { messages, add_generation_prompt: true, ..ChatPrompt::default() };
                llm.encode_chat(&chat).expect("a conversation")
            }
        };
        assert_eq!(got, ids(&case["prompt_ids"]), "{}", case["name"]);
    }
}

/// The fast path quantizes activations, so it is judged by log-probabilities of whole prompts.
#[test]
fn the_fast_path_stays_close_to_the_golden_logprobs() {
    let Some(path) = model() else { return };
    let llm = open(&path, &[("max-model-len", "1024"), ("dtype", "auto")]);
    let golden = golden();
    let prompts = golden["greedy"].as_array().expect("cases");
    for case in golden["prompt_logprobs"].as_array().expect("prompt_logprobs") {
        let name = &case["name"];
        let prompt = prompts.iter().find(|prompt| &prompt["name"] == name).expect("its prompt");
        let want: Vec<f64> = case["logprobs"]
            .as_array()
            .expect("logprobs")
            .iter()
            .map(|value| value.as_f64().expect("a number"))
            .collect();
        let mut request = greedy(Prompt::TokenIds(ids(&prompt["prompt_ids"])), 1);
        request.sampling.prompt_logprobs = Some(0);
        let mut got = Vec::new();
        for event in llm.generate(request).expect("the request is fine") {
            if let TextEvent::Prompt { logprobs } = event {
                got.extend(logprobs.iter().flatten().map(|l| f64::from(l.chosen.logprob)));
            }
        }
        assert_eq!(got.len(), want.len(), "{name}");
        let count = want.len() as f64;
        let mean = got.iter().zip(&want).map(|(g, w)| g - w).sum::<f64>() / count;
        let square = got.iter().zip(&want).map(|(g, w)| (g - w).powi(2)).sum::<f64>() / count;
        eprintln!("{name}: {count} tokens, mean {mean:.4}, root mean square {:.4}", square.sqrt());
        assert!(mean.abs() < 0.06 && square.sqrt() < 0.2, "{name}: {mean} {}", square.sqrt());
    }
}
