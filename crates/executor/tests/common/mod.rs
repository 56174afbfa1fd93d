//! Golden files, and engines to hold against them.

use std::path::{Path, PathBuf};

use pagedllm_backend::{Backend, Reference};
use pagedllm_checkpoint::Checkpoint;
use pagedllm_core::{DType, FinishReason, RankId, SamplingParams, TokenId};
use pagedllm_cpu::{CpuBackend, CpuDType, CpuOptions};
use pagedllm_engine::{
    Engine, EngineConfig, EngineHandle, EngineStats, Event, ExecutorShape, Request, Shutdown,
};
use pagedllm_executor::LocalExecutor;
use pagedllm_models::{LoadOptions, WorkspaceLimits};
use serde_json::Value;

const BLOCK_SIZE: usize = 16;
const MAX_MODEL_LEN: usize = 160;
/// A continuation may leave the golden one only where the two best logits are closer than this.
const NEAR_TIE: f64 = 1e-3;

/// One directory of `tests/golden/tiny`.
pub struct Golden {
    name: String,
    path: PathBuf,
    json: Value,
}

/// How much may run at once.
#[derive(Clone, Copy)]
pub struct Limits {
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
    pub num_blocks: usize,
}

/// An engine with a tiny model.
pub struct Serving(EngineHandle);

/// The goldens whose architecture loads.
pub fn every_tiny() -> impl Iterator<Item = Golden> {
    // A test that was copied to another machine brings its files along.
    let folder = std::env::var_os("PAGEDLLM_GOLDENS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden"),
        PathBuf::from,
    );
    let folder = folder.join("tiny");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("tests/golden/tiny is there")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| path.join("golden.json").is_file() && path.join("config.json").is_file())
        .collect();
    paths.sort();
    assert!(paths.len() >= 10, "only {} goldens", paths.len());
    paths.into_iter().filter_map(|path| {
        let checkpoint =
            Checkpoint::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let architecture = checkpoint.config().architecture.as_str();
        if !pagedllm_models::ARCHITECTURES.contains(&architecture) {
            return None;
        }
        let text = std::fs::read_to_string(path.join("golden.json")).expect("golden.json");
        let json = serde_json::from_str(&text).expect("golden.json is JSON");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        Some(Golden { name, path, json })
    })
}

fn tokens(value: &Value) -> Vec<TokenId> {
    let list = value.as_array().expect("a list of token ids");
    list.iter().map(|id| id.as_u64().expect("an id") as TokenId).collect()
}

impl Golden {
    fn checkpoint(&self) -> Checkpoint {
        Checkpoint::open(&self.path).expect("the golden opens")
    }

    /// The same model, but for a token whose embedding is not a number. `None` where the head is
    /// the embedding, so that no logits would be numbers.
    pub fn poisoned(&self, token: TokenId) -> Option<Checkpoint> {
        let checkpoint = self.checkpoint();
        if checkpoint.config().tie_word_embeddings {
            return None;
        }
        let mut bytes = std::fs::read(self.path.join("model.safetensors")).ok()?;
        let header_len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let header: Value =
            serde_json::from_slice(&bytes[8..8 + header_len]).expect("a header of JSON");
        let start = header["model.embed_tokens.weight"]["data_offsets"][0].as_u64();
        let row_bytes = checkpoint.config().hidden_size * 2;
        let at = 8 + header_len + start.expect("an offset") as usize + token as usize * row_bytes;
        // All bits set is no number in bf16.
        bytes[at..at + row_bytes].fill(0xff);
        let config = std::fs::read_to_string(self.path.join("config.json")).expect("config.json");
        Some(Checkpoint::from_safetensors(&config, bytes).expect("the poisoned golden opens"))
    }

    /// Sends the prompts together, one of them with the poisoned token in it. That one ends with a
    /// fault, and the others are what they are without it.
    pub fn check_containment(&self, serving: &Serving, poison: TokenId) {
        let cases = self.json["greedy"].as_array().expect("greedy");
        let send = |prompt: Vec<TokenId>| {
            let params = SamplingParams {
                temperature: 0.0,
                max_tokens: 12,
                ignore_eos: true,
                logit_bias: vec![(poison, -100.0)],
                ..SamplingParams::default()
            };
            serving.0.stream(Request::new(prompt, params)).expect("the engine takes it")
        };
        let good: Vec<Vec<TokenId>> = cases
            .iter()
            .map(|case| tokens(&case["prompt_ids"]))
            .filter(|prompt| !prompt.contains(&poison))
            .collect();
        assert!(good.len() >= 2, "{}: the token is in nearly all prompts", self.name);
        let alone: Vec<_> =
            good.iter().map(|prompt| send(prompt.clone()).collect_choices().remove(0)).collect();
        for at in [0, good[0].len() / 2, good[0].len() - 1] {
            let mut bad = good[0].clone();
            bad[at] = poison;
            let bad = send(bad);
            let beside: Vec<_> = good.iter().map(|prompt| send(prompt.clone())).collect();
            let choice = bad.collect_choices().remove(0);
            assert_eq!(choice.reason, FinishReason::Fault, "{}, poison at {at}", self.name);
            for (stream, alone) in beside.into_iter().zip(&alone) {
                let choice = stream.collect_choices().remove(0);
                assert_eq!(choice.reason, FinishReason::Length, "{}", self.name);
                assert_eq!(choice.tokens, alone.tokens, "{}, poison at {at}", self.name);
            }
        }
        assert_eq!(serving.stats().corrupted_requests_total, 3);
    }

    /// Sends all prompts at once and compares the continuations.
    pub fn check_greedy(&self, serving: &Serving, way: &str) {
        let cases = self.json["greedy"].as_array().expect("greedy");
        let streams: Vec<_> = cases
            .iter()
            .map(|case| {
                let params = SamplingParams {
                    temperature: 0.0,
                    max_tokens: tokens(&case["output_ids"]).len() as u32,
                    ignore_eos: true,
                    ..SamplingParams::default()
                };
                let request = Request::new(tokens(&case["prompt_ids"]), params);
                serving.0.stream(request).expect("the engine takes it")
            })
            .collect();
        for (index, (case, stream)) in cases.iter().zip(streams).enumerate() {
            let got = stream.collect_choices().remove(0).tokens;
            let want = tokens(&case["output_ids"]);
            let Some(at) = (0..want.len()).find(|&at| got.get(at) != Some(&want[at])) else {
                assert_eq!(got.len(), want.len(), "{}, {way}, prompt {index}", self.name);
                continue;
            };
            let gap = case["gaps"][at].as_f64().expect("a gap");
            assert!(
                gap < NEAR_TIE,
                "{}, {way}, prompt {index}: {got:?} leaves {want:?} at {at}, gap {gap}",
                self.name
            );
        }
    }

    /// Compares the log-probabilities of the token after each prompt with the golden logits.
    pub fn check_logits(&self, serving: &Serving) {
        for case in self.json["logits"].as_array().expect("logits") {
            let logits: Vec<f64> = case["last_row"]
                .as_array()
                .expect("a row")
                .iter()
                .map(|v| v.as_f64().expect("a logit"))
                .collect();
            let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_sum = best + logits.iter().map(|l| (l - best).exp()).sum::<f64>().ln();
            let params = SamplingParams {
                temperature: 0.0,
                max_tokens: 1,
                logprobs: Some(20),
                ..SamplingParams::default()
            };
            let request = Request::new(tokens(&case["prompt_ids"]), params);
            let mut compared = 0;
            for event in serving.0.stream(request).expect("the engine takes it") {
                let Event::Token { logprobs, .. } = event else { continue };
                for top in logprobs.expect("asked for").top {
                    let want = logits[top.token as usize] - log_sum;
                    let off = (f64::from(top.logprob) - want).abs();
                    assert!(off < 1e-3, "{}: logprob of {} is off by {off}", self.name, top.token);
                    compared += 1;
                }
            }
            assert_eq!(compared, 20, "{}", self.name);
        }
    }
}

impl Serving {
    pub fn stats(&self) -> EngineStats {
        self.0.stats()
    }

    /// Shuts down and checks that every block came back.
    pub fn finish(self) {
        self.0.shutdown(Shutdown::Now);
        assert_eq!(self.0.stats().num_blocks_used, 0, "blocks are still held");
    }
}

pub fn reference(golden: &Golden, limits: Limits) -> Serving {
    serve(Reference::default(), &golden.checkpoint(), limits, 1)
}

pub fn cpu(golden: &Golden, limits: Limits) -> Serving {
    cpu_of(&golden.checkpoint(), limits)
}

pub fn cpu_of(checkpoint: &Checkpoint, limits: Limits) -> Serving {
    let options = CpuOptions { dtype: CpuDType::Float32, num_threads: 2, ..CpuOptions::default() };
    serve(CpuBackend::new(options).expect("a CPU"), checkpoint, limits, 1)
}

#[cfg(feature = "cuda")]
pub fn cuda(golden: &Golden, limits: Limits) -> Serving {
    cuda_of(&golden.checkpoint(), limits)
}

/// The GPU in float32, with recorded steps, two of them in flight.
#[cfg(feature = "cuda")]
pub fn cuda_of(checkpoint: &Checkpoint, limits: Limits) -> Serving {
    let options = pagedllm_cuda::CudaOptions {
        dtype: DType::F32,
        kv_dtype: DType::F32,
        graph_batch_sizes: vec![1, 2, 4, 8],
        ..pagedllm_cuda::CudaOptions::default()
    };
    let b = pagedllm_cuda::CudaBackend::new(options).expect("the device opens");
    serve(b, checkpoint, limits, 2)
}

fn serve<B: Backend>(
    mut b: B,
    checkpoint: &Checkpoint,
    limits: Limits,
    max_steps_in_flight: usize,
) -> Serving {
    let config = checkpoint.config();
    let load = LoadOptions { rank: RankId::SINGLE, max_model_len: MAX_MODEL_LEN };
    let model =
        pagedllm_models::load(&mut b, checkpoint, load, &mut |_| true).expect("the model loads");
    let workspace = WorkspaceLimits {
        max_num_batched_tokens: limits.max_num_batched_tokens,
        max_num_seqs: limits.max_num_seqs,
        max_logit_rows: limits.max_num_batched_tokens,
        max_model_len: MAX_MODEL_LEN,
        block_size: BLOCK_SIZE,
    };
    b.reserve_workspace(&pagedllm_models::workspace(config, 1, workspace)).expect("memory");
    let groups = pagedllm_models::kv_groups(config, 1, BLOCK_SIZE, DType::F32).expect("groups");
    let kv = b.allocate_kv_cache(&groups, limits.num_blocks).expect("memory");
    let shape = ExecutorShape {
        groups,
        block_size: BLOCK_SIZE,
        num_blocks: limits.num_blocks,
        vocab_size: config.vocab_size,
        max_model_len: MAX_MODEL_LEN,
        max_num_batched_tokens: limits.max_num_batched_tokens,
        max_num_seqs: limits.max_num_seqs,
        max_logit_rows: limits.max_num_batched_tokens,
        max_steps_in_flight,
    };
    let executor = LocalExecutor::new(b, model, kv, shape);
    Serving(Engine::spawn(Box::new(executor), EngineConfig::default()))
}
