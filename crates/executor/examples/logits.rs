//! Logits of a model of made-up weights, computed in four ways, for `benches/gpu/compare_logits.py`
//! to hold against another program:
//!
//! ```sh
//! cargo run --release -p pagedllm-executor --example logits -- FOLDER OUT [cpu|cuda] [float32|bfloat16]
//! ```
//!
//! `FOLDER` has a config.json. `OUT.json` lists prompt and rows, `OUT.f32` holds the rows.

use std::ops::Range;
use std::path::Path;

use pagedllm_backend::conformance::Probe;
use pagedllm_checkpoint::Checkpoint;
use pagedllm_core::{
    DType, GroupTables, RaggedBatch, RankId, SamplingBatch, StepInput, TokenSource,
};
use pagedllm_cpu::{CpuBackend, CpuDType, CpuOptions};
use pagedllm_models::{LoadOptions, Model, WorkspaceLimits};
use serde_json::{Value, json};

const PROMPT_LEN: usize = 640;
const BLOCK: usize = 16;
/// Blocks of one sequence; its own, but for the prefix that another has computed.
const BLOCKS: usize = PROMPT_LEN / BLOCK;
const CHUNK: usize = 96;
const DECODED: usize = 24;
const PREFIX: usize = 512;

/// A model on a device, and the rows that it has given.
struct Session<B: Probe> {
    b: B,
    model: Box<dyn Model<B>>,
    kv: B::KvCache,
    prompt: Vec<u32>,
    rows: Vec<Value>,
    logits: Vec<f32>,
}

impl<B: Probe> Session<B> {
    fn new(mut b: B, checkpoint: &Checkpoint, dtype: DType) -> Self {
        let config = checkpoint.config();
        let load = LoadOptions { rank: RankId::SINGLE, max_model_len: PROMPT_LEN };
        let model = pagedllm_models::load(&mut b, checkpoint, load, &mut |_| true).expect("memory");
        let limits = WorkspaceLimits {
            max_num_batched_tokens: PROMPT_LEN,
            max_num_seqs: 4,
            max_logit_rows: 64,
            max_model_len: PROMPT_LEN,
            block_size: BLOCK,
        };
        b.reserve_workspace(&pagedllm_models::workspace(config, 1, limits)).expect("memory");
        let groups = pagedllm_models::kv_groups(config, 1, BLOCK, dtype).expect("one device");
        assert_eq!(groups.len(), 1, "one kind of layers");
        let mut kv = b.allocate_kv_cache(&groups, 2 * BLOCKS).expect("memory");
        b.poison(&mut kv);
        let token = |position: usize| ((position * 7919 + 13) % config.vocab_size) as u32;
        let prompt = (0..PROMPT_LEN).map(token).collect();
        Self { b, model, kv, prompt, rows: Vec::new(), logits: Vec::new() }
    }

    /// Runs the tokens of `range` over the blocks of `table`, and keeps the logits at `wanted`.
    fn step(&mut self, way: &str, range: Range<usize>, table: &[usize], wanted: &[usize]) {
        let slot = |position: usize| (table[position / BLOCK] * BLOCK + position % BLOCK) as u32;
        let batch = RaggedBatch {
            token_ids: self.prompt[range.clone()].iter().map(|&t| TokenSource::Known(t)).collect(),
            positions: range.clone().map(|position| position as u32).collect(),
            query_starts: vec![0, range.len() as u32],
            seq_lens: vec![range.end as u32],
            logit_rows: wanted.iter().map(|&position| (position - range.start) as u32).collect(),
            groups: vec![GroupTables {
                slot_mapping: range.clone().map(slot).collect(),
                block_tables: table.iter().map(|&block| block as u32).collect(),
                max_blocks: table.len(),
            }],
        };
        batch.check(BLOCK);
        let Self { b, model, kv, .. } = self;
        let step = b.begin_step(kv, &StepInput { batch, ..StepInput::default() });
        let hidden = b.run(&step, |b| model.forward(b, kv, &step));
        let logits = model.head(b, &hidden, &step);
        let values = b.download(&logits);
        drop((hidden, logits));
        let sampled = b.sample(None, &step, &SamplingBatch::default());
        b.wait(sampled).expect("no device fault");
        let vocab_size = values.len() / wanted.len().max(1);
        for (position, row) in wanted.iter().zip(values.chunks_exact(vocab_size)) {
            self.rows.push(json!({"way": way, "position": position}));
            self.logits.extend(row);
        }
    }

    fn every_way(&mut self) {
        let last = PROMPT_LEN - 1;
        let own: Vec<usize> = (0..BLOCKS).collect();
        self.step("prefill", 0..PROMPT_LEN, &own, &[0, 1, 15, 16, 17, 127, 128, 300, 511, last]);

        let prefix = PREFIX / BLOCK;
        let shared: Vec<usize> = (0..prefix).chain(BLOCKS + prefix..2 * BLOCKS).collect();
        let wanted: Vec<usize> = (PREFIX..PROMPT_LEN).step_by(16).collect();
        self.step("prefix hit", PREFIX..PROMPT_LEN, &shared, &wanted);

        let other: Vec<usize> = (BLOCKS..2 * BLOCKS).rev().collect();
        for start in (0..PROMPT_LEN).step_by(CHUNK) {
            let end = (start + CHUNK).min(PROMPT_LEN);
            self.step("chunks", start..end, &other, &[start, end - 1]);
        }
        let first = PROMPT_LEN - DECODED;
        self.step("decode", 0..first, &own, &[first - 1]);
        for position in first..PROMPT_LEN {
            self.step("decode", position..position + 1, &own, &[position]);
        }
    }

    fn write(&self, out: &Path) {
        let text = json!({"prompt": self.prompt, "rows": self.rows}).to_string();
        std::fs::write(out.with_extension("json"), text).expect("it can be written");
        let bytes: Vec<u8> = self.logits.iter().flat_map(|value| value.to_le_bytes()).collect();
        std::fs::write(out.with_extension("f32"), bytes).expect("it can be written");
    }
}

fn run<B: Probe>(b: B, folder: &str, out: &str, dtype: DType) {
    let checkpoint = Checkpoint::open_dummy(Path::new(folder)).expect("a config.json");
    let mut session = Session::new(b, &checkpoint, dtype);
    session.every_way();
    session.write(Path::new(out));
}

#[cfg(feature = "cuda")]
fn run_cuda(folder: &str, out: &str, dtype: DType) {
    let options = pagedllm_cuda::CudaOptions {
        dtype,
        kv_dtype: dtype,
        ..pagedllm_cuda::CudaOptions::default()
    };
    run(pagedllm_cuda::CudaBackend::new(options).expect("a GPU"), folder, out, dtype);
}

#[cfg(not(feature = "cuda"))]
fn run_cuda(_folder: &str, _out: &str, _dtype: DType) {
    panic!("built without the feature cuda");
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, out, rest @ ..] = args.as_slice() else {
        panic!("usage: logits FOLDER OUT [cpu|cuda] [float32|bfloat16]");
    };
    let dtype = match rest.get(1).map(String::as_str) {
        Some("bfloat16") => DType::BF16,
        Some("float32") | None => DType::F32,
        Some(other) => panic!("{other} is neither float32 nor bfloat16"),
    };
    match rest.first().map(String::as_str) {
        Some("cuda") => run_cuda(folder, out, dtype),
        Some("cpu") | None => {
            let cpu_dtype = if dtype == DType::F32 { CpuDType::Float32 } else { CpuDType::Fast };
            let options = CpuOptions { dtype: cpu_dtype, ..CpuOptions::default() };
            run(CpuBackend::new(options).expect("a CPU"), folder, out, dtype);
        }
        Some(other) => panic!("{other} is neither cpu nor cuda"),
    }
}
