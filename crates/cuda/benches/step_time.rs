//! Device time of whole steps with dummy weights, for the shapes of Llama 3.1 8B and 3.2 1B:
//! decode by batch size, prefill by length, and decode over a prefix that is shared or not.
//!
//! `cargo bench -p pagedllm-cuda --features cuda --bench step_time -- [8b|1b] [json]`

#![allow(clippy::print_stdout, reason = "the table is the result")]

use pagedllm_backend::{Activation, AttentionSpec, Backend, DummyMatrix, Rope, WorkspaceSpec};
use pagedllm_core::{
    DType, Draw, GroupTables, KvGroup, KvLayout, RaggedBatch, RowTask, SamplingBatch, SamplingRow,
    Split, StepInput, TokenSource, WeightFormat, WeightView,
};
use pagedllm_cuda::{
    Attention, CudaBackend, CudaOptions, KvCache, Linear, Norm, Step, Tensor, Vocab, available,
};

const BLOCK: usize = 16;
const VOCAB: usize = 128_256;
const MAX_TOKENS: usize = 8192;
const MAX_SEQS: usize = 256;
const MAX_LEN: usize = 8192;
const BLOCKS: usize = 8192;

/// A decoder of the llama family.
struct Dims {
    name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    wide: usize,
}

const SHAPES: [Dims; 2] = [
    Dims { name: "8b", layers: 32, hidden: 4096, heads: 32, kv_heads: 8, dim: 128, wide: 14336 },
    Dims { name: "1b", layers: 16, hidden: 2048, heads: 32, kv_heads: 8, dim: 64, wide: 8192 },
];

struct Layer {
    input_norm: Norm,
    qkv: Linear,
    attention: Attention,
    out: Linear,
    mlp_norm: Norm,
    gate_up: Linear,
    down: Linear,
}

struct Model {
    b: CudaBackend,
    kv: KvCache,
    vocab: Vocab,
    layers: Vec<Layer>,
    norm: Norm,
}

impl Model {
    fn new(dims: &Dims, enforce_eager: bool) -> Self {
        let options = CudaOptions {
            enforce_eager,
            graph_batch_sizes: vec![1, 2, 4, 8, 16, 32, 64, 128, 256],
            ..CudaOptions::default()
        };
        let mut b = CudaBackend::new(options).expect("the device opens");
        let ones = vec![1.0f32; dims.hidden];
        let gain = WeightView {
            name: "a gain of ones".into(),
            format: WeightFormat::F32,
            rows: 1,
            cols: dims.hidden,
            data: ones.iter().flat_map(|one| one.to_le_bytes()).collect::<Vec<_>>().into(),
        };
        let rope = Rope {
            inv_freq: (0..dims.dim / 2)
                .map(|i| 5e5f32.powf(-(i as f32) * 2.0 / dims.dim as f32))
                .collect(),
            attention_factor: 1.0,
            max_positions: MAX_LEN,
        };
        let mut seed = 0;
        let mut layers = Vec::new();
        for layer in 0..dims.layers {
            let spec = AttentionSpec {
                layer,
                group: 0,
                layer_in_group: layer,
                num_heads: dims.heads,
                num_kv_heads: dims.kv_heads,
                head_dim: dims.dim,
                scale: (dims.dim as f32).powf(-0.5),
                rope: Some(rope.clone()),
                window: None,
                soft_cap: None,
                qk_norm_eps: 0.0,
            };
            let mut linear = |b: &mut CudaBackend, outputs, inputs| {
                seed += 1;
                let matrix = dummy(seed, outputs, inputs);
                b.load_dummy_linear(&[matrix], Split::Whole).expect("memory")
            };
            layers.push(Layer {
                qkv: linear(&mut b, spec.qkv_cols(), dims.hidden),
                out: linear(&mut b, dims.hidden, dims.heads * dims.dim),
                gate_up: linear(&mut b, 2 * dims.wide, dims.hidden),
                down: linear(&mut b, dims.hidden, dims.wide),
                input_norm: b.load_norm(&gain, 1e-5).expect("memory"),
                mlp_norm: b.load_norm(&gain, 1e-5).expect("memory"),
                attention: b.load_attention(&spec, None, None, None).expect("a known shape"),
            });
        }
        let vocab = b.load_dummy_vocab(&dummy(0, VOCAB, dims.hidden)).expect("memory");
        let norm = b.load_norm(&gain, 1e-5).expect("memory");
        b.reserve_workspace(&WorkspaceSpec {
            max_num_batched_tokens: MAX_TOKENS,
            max_num_seqs: MAX_SEQS,
            max_logit_rows: MAX_SEQS,
            max_model_len: MAX_LEN,
            block_size: BLOCK,
            vocab_size: VOCAB,
            hidden_size: dims.hidden,
            max_cols: 2 * dims.wide,
        })
        .expect("memory");
        let layout = KvLayout {
            block_size: BLOCK,
            num_kv_heads: dims.kv_heads,
            head_dim: dims.dim,
            dtype: DType::BF16,
        };
        let group = KvGroup { layers: (0..dims.layers).collect(), layout, window: None };
        let kv = b.allocate_kv_cache(&[group], BLOCKS).expect("memory");
        Self { b, kv, vocab, layers, norm }
    }

    fn run(&mut self, input: &StepInput, sampling: &SamplingBatch) {
        let Self { b, kv, vocab, layers, norm } = self;
        let step = b.begin_step(kv, input);
        let hidden = b.run(&step, |b| forward(b, kv, vocab, layers, norm, &step));
        let logits = b.head(&hidden, vocab, &step);
        drop(hidden);
        let sampled = b.sample(Some(logits), &step, sampling);
        b.wait(sampled).expect("no device fault");
    }

    /// Prints where the time of a step goes: on the host for each call, on the device for each
    /// part (medians of 15).
    fn parts(&mut self, input: &StepInput, sampling: &SamplingBatch) {
        let mut host = vec![Vec::new(); 5];
        let mut device = vec![Vec::new(); 3];
        for _ in 0..17 {
            let Self { b, kv, vocab, layers, norm } = self;
            let mut clock = std::time::Instant::now();
            let mut lap = |index: usize| {
                host[index].push(clock.elapsed().as_secs_f32() * 1e3);
                clock = std::time::Instant::now();
            };
            let step = b.begin_step(kv, input);
            lap(0);
            let mut hidden = None;
            let ms = b.time(|b| {
                hidden = Some(b.run(&step, |b| forward(b, kv, vocab, layers, norm, &step)));
                lap(1);
            });
            device[0].push(ms.expect("no device fault"));
            lap(4);
            let mut logits = None;
            let ms = b.time(|b| {
                logits = hidden.take().map(|hidden| b.head(&hidden, vocab, &step));
                lap(2);
            });
            device[1].push(ms.expect("no device fault"));
            lap(4);
            let mut sampled = None;
            let ms = b.time(|b| {
                sampled = Some(b.sample(logits.take(), &step, sampling));
                lap(3);
            });
            device[2].push(ms.expect("no device fault"));
            lap(4);
            b.wait(sampled.expect("sampling started")).expect("no device fault");
        }
        let median = |times: &mut Vec<f32>| {
            times.drain(..times.len().min(2));
            times.sort_by(f32::total_cmp);
            times.get(times.len() / 2).copied().unwrap_or(0.0)
        };
        let host: Vec<f32> = host.iter_mut().map(median).collect();
        let device: Vec<f32> = device.iter_mut().map(median).collect();
        println!(
            "  host: begin {:.3}, run {:.3}, head {:.3}, sample {:.3}; device: layers {:.3}, head \
             {:.3}, sampling {:.3} ms",
            host[0], host[1], host[2], host[3], device[0], device[1], device[2]
        );
    }

    /// Median milliseconds of `runs` steps, after two that are not counted.
    fn time(&mut self, input: &StepInput, sampling: &SamplingBatch, runs: usize) -> f32 {
        for _ in 0..2 {
            self.run(input, sampling);
        }
        let mut times: Vec<f32> = (0..runs)
            .map(|_| {
                let start = std::time::Instant::now();
                self.run(input, sampling);
                start.elapsed().as_secs_f32() * 1e3
            })
            .collect();
        times.sort_by(f32::total_cmp);
        times[runs / 2]
    }
}

fn dummy(number: usize, rows: usize, cols: usize) -> DummyMatrix {
    DummyMatrix { name: number.to_string(), dtype: DType::BF16, rows, cols, has_bias: false }
}

fn forward(
    b: &mut CudaBackend,
    kv: &mut KvCache,
    vocab: &Vocab,
    layers: &[Layer],
    norm: &Norm,
    step: &Step,
) -> Tensor {
    let mut x = b.embed(vocab, step);
    let mut residual = b.zeros(&x, step);
    for layer in layers {
        let qkv = b.norm_linear(x, &mut residual, &layer.input_norm, &layer.qkv, step);
        let mixed = b.attend(qkv, &layer.attention, kv, step);
        let out = b.linear(&mixed, &layer.out, step);
        drop(mixed);
        x = b.gated_mlp(
            out,
            &mut residual,
            &layer.mlp_norm,
            &layer.gate_up,
            Activation::Silu,
            &layer.down,
            step,
        );
    }
    b.final_norm(x, &mut residual, norm, step)
}

/// `seqs` sequences with `before` tokens in the cache and `tokens` new ones each.
fn step(seqs: usize, before: usize, tokens: usize) -> StepInput {
    step_on_prefix(seqs, before, tokens, 0)
}

/// The same, where the first `shared` tokens lie in the same blocks for all.
fn step_on_prefix(seqs: usize, before: usize, tokens: usize, shared: usize) -> StepInput {
    let len = before + tokens;
    let max_blocks = len.div_ceil(BLOCK);
    let mut batch = RaggedBatch { query_starts: vec![0], ..RaggedBatch::default() };
    let mut group = GroupTables { max_blocks, ..GroupTables::default() };
    for sequence in 0..seqs {
        // Blocks of a sequence lie apart, as after a while of serving.
        let block = |index: usize| {
            let owner = if (index + 1) * BLOCK <= shared { 0 } else { sequence };
            ((index * seqs + owner) * 641 % BLOCKS) as u32
        };
        for position in before..len {
            let id = (sequence * 7919 + position * 104_729) % VOCAB;
            batch.token_ids.push(TokenSource::Known(id as u32));
            batch.positions.push(position as u32);
            let slot = block(position / BLOCK) * BLOCK as u32 + (position % BLOCK) as u32;
            group.slot_mapping.push(slot);
        }
        batch.query_starts.push(batch.token_ids.len() as u32);
        batch.seq_lens.push(len as u32);
        batch.logit_rows.push(batch.token_ids.len() as u32 - 1);
        group.block_tables.extend((0..max_blocks).map(block));
    }
    batch.groups.push(group);
    batch.check(BLOCK);
    StepInput { batch, ..StepInput::default() }
}

fn sampling(rows: usize, temperature: f32, top_p: f32) -> SamplingBatch {
    let row = |index: usize| {
        let draw = Draw {
            temperature,
            top_k: 0,
            top_p,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            banned: Vec::new(),
            allowed: None,
            mask: None,
            seed: index as u64,
            choice: 0,
            position: 0,
            state_row: None,
        };
        SamplingRow { logit_row: index as u32, task: RowTask::Draw(draw), num_logprobs: None }
    };
    SamplingBatch { rows: (0..rows).map(row).collect(), masks: Vec::new() }
}

fn main() {
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    // `SEQS,CONTEXT,TOKENS` or `SEQS,CONTEXT,TOKENS,SHARED` runs that one step twice, kernel by
    // kernel, for a profiler.
    let one: Option<Vec<usize>> = args
        .iter()
        .find(|arg| arg.contains(','))
        .map(|arg| arg.split(',').filter_map(|number| number.parse().ok()).collect());
    for dims in &SHAPES {
        if !args.is_empty() && !args.iter().any(|name| name == dims.name) {
            continue;
        }
        if let Some([seqs, before, tokens, shared @ ..]) = one.as_deref() {
            let shared = shared.first().copied().unwrap_or(0);
            let input = step_on_prefix(*seqs, *before, *tokens, shared);
            let mut model = Model::new(dims, true);
            for _ in 0..2 {
                model.run(&input, &sampling(*seqs, 0.8, 0.9));
            }
        } else {
            table(dims);
        }
    }
}

fn table(dims: &Dims) {
    let start = std::time::Instant::now();
    let mut model = Model::new(dims, false);
    println!("{} opened in {:.2} s", dims.name, start.elapsed().as_secs_f32());
    let weights = dims.layers
        * (dims.hidden * (dims.heads + 2 * dims.kv_heads) * dims.dim
            + dims.heads * dims.dim * dims.hidden
            + 3 * dims.hidden * dims.wide)
        + VOCAB * dims.hidden;
    for seqs in [1, 8, 32, 128, 256] {
        let context = 192;
        let kv = seqs * context * dims.layers * 2 * dims.kv_heads * dims.dim;
        let floor = (weights + kv) as f32 * 2.0 / 4.45e9;
        let input = step(seqs, context - 1, 1);
        let greedy = model.time(&input, &sampling(seqs, 0.0, 1.0), 15);
        let random = model.time(&input, &sampling(seqs, 1.0, 1.0), 9);
        let nucleus = model.time(&input, &sampling(seqs, 0.8, 0.9), 9);
        println!(
            "{} decode, batch {seqs}, context {context}: {greedy:.3} ms a step greedy, \
             {random:.3} random, {nucleus:.3} top-p; floor {floor:.2}",
            dims.name
        );
        model.parts(&input, &sampling(seqs, 0.0, 1.0));
    }
    for (seqs, tokens) in [(1, 128), (1, 1000), (1, 4000), (4, 2000)] {
        let input = step(seqs, 0, tokens);
        let ms = model.time(&input, &sampling(seqs, 0.0, 1.0), 5);
        let rate = (seqs * tokens) as f32 / ms * 1e3;
        println!("{} prefill, {seqs} of {tokens}: {ms:.2} ms, {rate:.0} tokens/s", dims.name);
    }
    for (seqs, context) in [(1, 8000), (16, 8000)] {
        let ms = model.time(&step(seqs, context, 1), &sampling(seqs, 0.0, 1.0), 9);
        println!("{} decode, batch {seqs}, context {context}: {ms:.3} ms", dims.name);
    }
    for (seqs, prefix) in [(50, 2048), (200, 512)] {
        for (shared, what) in [(0, "prefixes of their own"), (prefix, "a shared prefix")] {
            let input = step_on_prefix(seqs, prefix + 127, 1, shared);
            let greedy = sampling(seqs, 0.0, 1.0);
            let ms = model.time(&input, &greedy, 15);
            println!(
                "{} decode, batch {seqs}, 128 after {what} of {prefix}: {ms:.3} ms",
                dims.name
            );
            model.parts(&input, &greedy);
        }
    }
}
