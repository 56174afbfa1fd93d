//! Whole steps: recorded ones, two in flight, tokens that the device resolves, and masks that
//! come late, each against the scalar backend.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use pagedllm_backend::conformance::{Probe, Random, relative_error};
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
/// Blocks of a sequence on its own.
const BLOCKS_EACH: usize = 8;
const MAX_SEQS: usize = 24;
const BLOCKS: usize = MAX_SEQS * BLOCKS_EACH + 40;
const MAX_LEN: usize = 1024;
const SCALE: f32 = 0.125;
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
    fn new(b: B, kv_dtype: DType) -> Self {
        Self::with_scale(b, kv_dtype, SCALE)
    }

    /// With another scale of the attention scores.
    fn with_scale(mut b: B, kv_dtype: DType, scale: f32) -> Self {
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
                scale,
                rope: Some(Rope {
                    inv_freq: (0..DIM / 2).map(|i| 0.8f32.powi(i as i32)).collect(),
                    attention_factor: 1.0,
                    max_positions: MAX_LEN,
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
            max_num_seqs: MAX_SEQS,
            max_logit_rows: MAX_SEQS,
            max_model_len: MAX_LEN,
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

    /// Begins a step and runs it up to the attention of the first layer.
    fn submit_attention(&mut self, input: &StepInput) -> B::Tensor {
        let Self { b, kv, vocab, layers, .. } = self;
        let step = b.begin_step(kv, input);
        let layer = &layers[0];
        b.run(&step, |b| {
            let x = b.embed(vocab, &step);
            let mut residual = b.zeros(&x, &step);
            let qkv = b.norm_linear(x, &mut residual, &layer.input_norm, &layer.qkv, &step);
            b.attend(qkv, &layer.attention, kv, &step)
        })
    }
}

/// Sequences of the test: their tokens so far and their blocks.
struct Traffic {
    lens: Vec<usize>,
    tables: Vec<Vec<u32>>,
}

impl Traffic {
    /// Sequences on blocks of their own.
    fn new(sequences: usize) -> Self {
        let table = |sequence| {
            let first = sequence * BLOCKS_EACH;
            (first as u32..(first + BLOCKS_EACH) as u32).collect()
        };
        Self { lens: vec![0; sequences], tables: (0..sequences).map(table).collect() }
    }
    /// A step of one chunk a sequence, whose tokens `source` names.
    fn step(
        &mut self,
        chunks: &[(usize, usize)],
        mut source: impl FnMut(usize, usize) -> TokenSource,
    ) -> StepInput {
        let mut batch = RaggedBatch { query_starts: vec![0], ..RaggedBatch::default() };
        let longest = chunks.iter().map(|&(sequence, _)| self.tables[sequence].len()).max();
        let max_blocks = longest.unwrap_or(0);
        let mut group = GroupTables { max_blocks, ..GroupTables::default() };
        for (chunk, &(sequence, tokens)) in chunks.iter().enumerate() {
            let table = &self.tables[sequence];
            for position in self.lens[sequence]..self.lens[sequence] + tokens {
                batch.token_ids.push(source(chunk, position));
                batch.positions.push(position as u32);
                let block = table[position / BLOCK];
                group.slot_mapping.push(block * BLOCK as u32 + (position % BLOCK) as u32);
            }
            self.lens[sequence] += tokens;
            batch.query_starts.push(batch.token_ids.len() as u32);
            batch.seq_lens.push(self.lens[sequence] as u32);
            batch.logit_rows.push(batch.token_ids.len() as u32 - 1);
            group.block_tables.extend(table);
            group.block_tables.resize((chunk + 1) * max_blocks, 0);
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
    let mut traffic = Traffic::new(8);
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
        graph_batch_sizes: vec![2, 4, 8, MAX_SEQS],
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
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 2e-2), (DType::F16, 3e-3)] {
        let mut reference = Tiny::new(Reference::default(), DType::F32);
        let mut issued = cuda(dtype, true);
        let mut recorded = cuda(dtype, false);
        let mut traffic = Traffic::new(8);
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

#[test]
fn a_recorded_step_takes_whatever_later_sequences_share() {
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    const PREFIX: usize = 36 * BLOCK;
    // Queries and keys are small; the scores shall differ between sequences, and so the results.
    const STEEP: f32 = 100.0;
    let steep = |dtype, enforce_eager| {
        let b = CudaBackend::new(options(dtype, enforce_eager)).expect("the device opens");
        Tiny::with_scale(b, dtype, STEEP)
    };
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::BF16, 2e-2), (DType::F16, 3e-3)] {
        let mut reference = Tiny::with_scale(Reference::default(), DType::F32, STEEP);
        let mut devices = [steep(dtype, true), steep(dtype, false)];
        let mut random = Random::new(SEED + 5);
        let mut play = |traffic: &mut Traffic, chunks: &[(usize, usize)], case: &str| {
            let input = traffic.step(chunks, |_, _| TokenSource::Known(random.below(VOCAB) as u32));
            let want = reference.submit_attention(&input);
            for (device, way) in devices.iter_mut().zip(["issued", "recorded"]) {
                let got = device.submit_attention(&input);
                // Rows of padding come after those of the step.
                let got = device.b.download(&got);
                let error = relative_error(&got[..want.data.len()], &want.data);
                assert!(error < tolerance, "{dtype}, {case}, {way}: {error:e}, seed {SEED}");
            }
        };
        // Recorded where nothing is shared.
        let mut traffic = Traffic::new(MAX_SEQS);
        let all: Vec<_> = (0..MAX_SEQS).map(|sequence| (sequence, 1)).collect();
        play(&mut traffic, &all, "apart");
        play(&mut traffic, &all[3..], "apart again");
        // All but the last four continue one sequence, some from a block or two before its end.
        let first = (MAX_SEQS * BLOCKS_EACH) as u32;
        let prefix: Vec<u32> = (first..first + (PREFIX / BLOCK) as u32).collect();
        let own = traffic.tables.clone();
        traffic.tables[0] = prefix.clone();
        traffic.lens[0] = 0;
        while traffic.lens[0] < PREFIX {
            let tokens = (PREFIX - traffic.lens[0]).min(128);
            play(&mut traffic, &[(0, tokens)], "the prefix");
        }
        for (sequence, own) in own.iter().enumerate().take(MAX_SEQS - 4) {
            let shared = prefix.len() - sequence % 3;
            traffic.tables[sequence] = prefix[..shared].to_vec();
            traffic.tables[sequence].extend(own);
            traffic.lens[sequence] = shared * BLOCK;
        }
        let own: Vec<_> = (0..MAX_SEQS).map(|sequence| (sequence, 1 + sequence % 7)).collect();
        play(&mut traffic, &own, "own tokens");
        for round in 0..12 {
            // From all of them to so few that they share nothing, in changing order.
            let mut chunks = all[round..].to_vec();
            chunks.rotate_left(round * 5 % 11);
            play(&mut traffic, &chunks, &format!("round {round}"));
        }
    }
}
