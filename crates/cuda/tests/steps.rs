//! Whole steps: recorded ones, two in flight, tokens that the device resolves, and masks that
//! come late, each against the scalar backend.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use pagedllm_backend::conformance::{Random, relative_error};
use pagedllm_backend::{Activation, AttentionSpec, Backend, Reference, Rope, WorkspaceSpec};
use pagedllm_core::{
    DType, Draw, GroupTables, KvGroup, KvLayout, LinearPart, RaggedBatch, RowTask, SamplingBatch,
    SamplingRow, Split, StepInput, TokenSource, WeightFormat,
};
use pagedllm_cuda::{CudaBackend, CudaOptions, available};

const VOCAB: usize = 512;
const HIDDEN: usize = 128;
const WIDE: usize = 192;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const LAYERS: usize = 2;
const BLOCK: usize = 16;
const BLOCKS: usize = 64;
const SEED: u64 = 20;

struct Layer<B: Backend> {
    input_norm: B::Norm,
    qkv: B::Linear,
    attention: B::Attention,
    out: B::Linear,
    mlp_norm: B::Norm,
    gate_up: B::Linear,
    down: B::Linear,
}

/// A model of two layers with the same random weights on every backend.
struct Tiny<B: Backend> {
    b: B,
    kv: B::KvCache,
    vocab: B::Vocab,
    layers: Vec<Layer<B>>,
    norm: B::Norm,
}

impl<B: Backend> Tiny<B> {
    fn new(mut b: B, kv_dtype: DType) -> Self {
        let mut random = Random::new(SEED);
        let mut linear = |b: &mut B, outputs, inputs| {
            let weight = random.weight(WeightFormat::F32, outputs, inputs);
            let parts = [LinearPart { weight, bias: None }];
            b.load_linear(&parts, Split::Whole).expect("weights load")
        };
        let gains = Random::new(SEED + 1).weight(WeightFormat::F32, 1, HIDDEN);
        let table = Random::new(SEED + 2).weight(WeightFormat::F32, VOCAB, HIDDEN);
        let layers = (0..LAYERS).map(|layer| {
            let spec = AttentionSpec {
                layer,
                group: 0,
                layer_in_group: layer,
                num_heads: HEADS,
                num_kv_heads: KV_HEADS,
                head_dim: DIM,
                scale: 0.125,
                rope: Some(Rope {
                    inv_freq: (0..DIM / 2).map(|i| 0.8f32.powi(i as i32)).collect(),
                    attention_factor: 1.0,
                    max_positions: 512,
                }),
                window: None,
                soft_cap: None,
                qk_norm_eps: 0.0,
            };
            Layer {
                input_norm: b.load_norm(&gains, 1e-5).expect("a norm loads"),
                qkv: linear(&mut b, spec.qkv_cols(), HIDDEN),
                attention: b.load_attention(&spec, None, None, None).expect("attention"),
                out: linear(&mut b, HIDDEN, HEADS * DIM),
                mlp_norm: b.load_norm(&gains, 1e-5).expect("a norm loads"),
                gate_up: linear(&mut b, 2 * WIDE, HIDDEN),
                down: linear(&mut b, HIDDEN, WIDE),
            }
        });
        let layers = layers.collect();
        let vocab = b.load_vocab(&table).expect("a table loads");
        let norm = b.load_norm(&gains, 1e-5).expect("a norm loads");
        b.reserve_workspace(&WorkspaceSpec {
            max_num_batched_tokens: 128,
            max_num_seqs: 16,
            max_logit_rows: 16,
            max_model_len: 256,
            block_size: BLOCK,
            vocab_size: VOCAB,
            hidden_size: HIDDEN,
            max_cols: 512,
        })
        .expect("a small workspace");
        let layout =
            KvLayout { block_size: BLOCK, num_kv_heads: KV_HEADS, head_dim: DIM, dtype: kv_dtype };
        let group = KvGroup { layers: (0..LAYERS).collect(), layout, window: None };
        let kv = b.allocate_kv_cache(&[group], BLOCKS).expect("a small cache");
        Self { b, kv, vocab, layers, norm }
    }

    /// Begins a step and runs it up to the logits.
    fn submit(&mut self, input: &StepInput) -> (B::Step, B::Tensor) {
        let Self { b, kv, vocab, layers, norm } = self;
        let step = b.begin_step(kv, input);
        let hidden = b.run(&step, |b| {
            let mut x = b.embed(vocab, &step);
            let mut residual = b.zeros(&x, &step);
            for layer in &*layers {
                let qkv = b.norm_linear(x, &mut residual, &layer.input_norm, &layer.qkv, &step);
                let mixed = b.attend(qkv, &layer.attention, kv, &step);
                let out = b.linear(&mixed, &layer.out, &step);
                drop(mixed);
                x = b.gated_mlp(
                    out,
                    &mut residual,
                    &layer.mlp_norm,
                    &layer.gate_up,
                    Activation::Silu,
                    &layer.down,
                    &step,
                );
            }
            b.final_norm(x, &mut residual, norm, &step)
        });
        let logits = b.head(&hidden, vocab, &step);
        (step, logits)
    }
}

/// Sequences of the test, on blocks of their own.
struct Traffic {
    lens: Vec<usize>,
}

impl Traffic {
    fn blocks_of(sequence: usize) -> std::ops::Range<u32> {
        let each = (BLOCKS / 8) as u32;
        sequence as u32 * each..(sequence as u32 + 1) * each
    }
    /// A step of one chunk a sequence, whose tokens `source` names.
    fn step(
        &mut self,
        chunks: &[(usize, usize)],
        mut source: impl FnMut(usize, usize) -> TokenSource,
    ) -> StepInput {
        let mut batch = RaggedBatch { query_starts: vec![0], ..RaggedBatch::default() };
        let mut group = GroupTables { max_blocks: BLOCKS / 8, ..GroupTables::default() };
        for (chunk, &(sequence, tokens)) in chunks.iter().enumerate() {
            for position in self.lens[sequence]..self.lens[sequence] + tokens {
                batch.token_ids.push(source(chunk, position));
                batch.positions.push(position as u32);
                let block = Self::blocks_of(sequence).start + (position / BLOCK) as u32;
                group.slot_mapping.push(block * BLOCK as u32 + (position % BLOCK) as u32);
            }
            self.lens[sequence] += tokens;
            batch.query_starts.push(batch.token_ids.len() as u32);
            batch.seq_lens.push(self.lens[sequence] as u32);
            batch.logit_rows.push(batch.token_ids.len() as u32 - 1);
            group.block_tables.extend(Self::blocks_of(sequence));
        }
        batch.groups.push(group);
        batch.check(BLOCK);
        StepInput { batch, ..StepInput::default() }
    }
}

fn greedy(rows: usize, mask: Option<u32>) -> SamplingBatch {
    let draw = Draw {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        logit_bias: Vec::new(),
        banned: Vec::new(),
        allowed: None,
        mask,
        seed: 0,
        choice: 0,
        position: 0,
        state_row: None,
    };
    let row = |logit_row| SamplingRow {
        logit_row: logit_row as u32,
        task: RowTask::Draw(draw.clone()),
        num_logprobs: None,
    };
    SamplingBatch { rows: (0..rows).map(row).collect(), masks: Vec::new() }
}

/// Plays the same traffic: three prompts, then decode steps of which each names the tokens of the
/// one before, submitted before that one is waited for. The mask of a step is made from the result
/// of the step before, after the forward pass was submitted. Returns all tokens.
fn play<B: Backend>(tiny: &mut Tiny<B>, steps: usize) -> Vec<Vec<u32>> {
    let mut traffic = Traffic { lens: vec![0; 8] };
    let mut random = Random::new(SEED + 3);
    let prompt = traffic
        .step(&[(0, 40), (1, 7), (2, 19)], |_, _| TokenSource::Known(random.below(VOCAB) as u32));
    let (step, logits) = tiny.submit(&prompt);
    let mut in_flight = tiny.b.sample(Some(logits), &step, &greedy(3, None));
    let mut tokens = Vec::new();
    for _ in 0..steps {
        let chunks = [(0, 1), (1, 1), (2, 1)];
        let input = traffic.step(&chunks, |chunk, _| TokenSource::SampledBy { row: chunk as u32 });
        let (step, logits) = tiny.submit(&input);
        let output = tiny.b.wait(in_flight).expect("no device fault");
        let drawn: Vec<u32> = output.rows.iter().map(|row| row.tokens[0]).collect();
        // Tokens of the other parity than the first sequence's last one.
        let allowed = if drawn[0].is_multiple_of(2) { 0xAAAA_AAAA } else { 0x5555_5555 };
        let mut sampling = greedy(3, Some(0));
        sampling.masks = vec![allowed; VOCAB.div_ceil(32)];
        in_flight = tiny.b.sample(Some(logits), &step, &sampling);
        tokens.push(drawn);
    }
    let output = tiny.b.wait(in_flight).expect("no device fault");
    tokens.push(output.rows.iter().map(|row| row.tokens[0]).collect());
    tokens
}

fn options(dtype: DType, enforce_eager: bool) -> CudaOptions {
    CudaOptions {
        dtype,
        kv_dtype: dtype,
        enforce_eager,
        graph_batch_sizes: vec![2, 4, 8],
        ..CudaOptions::default()
    }
}

fn cuda(dtype: DType, enforce_eager: bool) -> Tiny<CudaBackend> {
    Tiny::new(CudaBackend::new(options(dtype, enforce_eager)).expect("the device opens"), dtype)
}

#[test]
fn overlapped_and_recorded_steps_draw_what_the_reference_draws() {
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    let want = play(&mut Tiny::new(Reference::default(), DType::F32), 40);
    for enforce_eager in [true, false] {
        let got = play(&mut cuda(DType::F32, enforce_eager), 40);
        assert_eq!(got, want, "eager {enforce_eager}, seed {SEED}");
    }
}

#[test]
fn recorded_steps_give_the_logits_of_issued_ones() {
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    use pagedllm_backend::conformance::Probe;
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 2e-2), (DType::F16, 3e-3)] {
        let mut reference = Tiny::new(Reference::default(), DType::F32);
        let mut issued = cuda(dtype, true);
        let mut recorded = cuda(dtype, false);
        let mut traffic = Traffic { lens: vec![0; 8] };
        let mut random = Random::new(SEED + 4);
        for round in 0..24 {
            // The number of sequences changes, so shapes are recorded, padded and replayed.
            let chunks: Vec<(usize, usize)> = if round == 0 {
                (0..7).map(|sequence| (sequence, 3 + sequence * 5)).collect()
            } else {
                (0..1 + round * 5 % 7).map(|sequence| (sequence, 1)).collect()
            };
            let input =
                traffic.step(&chunks, |_, _| TokenSource::Known(random.below(VOCAB) as u32));
            let (_, want) = reference.submit(&input);
            let (_, a) = issued.submit(&input);
            let (_, b) = recorded.submit(&input);
            let (a, b) = (issued.b.download(&a), recorded.b.download(&b));
            let error = relative_error(&b, &want.data);
            assert!(error < tolerance, "{dtype}, round {round}: {error:e}, seed {SEED}");
            let error = relative_error(&b, &a);
            assert!(error < tolerance, "{dtype}, round {round}: {error:e} apart, seed {SEED}");
        }
    }
}
