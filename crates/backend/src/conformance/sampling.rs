//! Sampling on the device against the scalar function.

use pagedllm_core::{
    Draw, KvGroup, KvLayout, RowOutput, RowTask, SamplingBatch, SamplingRow, StateOp, StepInput,
    TokenSource, WeightFormat,
};

use super::random::World;
use super::{Claims, Probe, Random};
use crate::backend::{Backend, WorkspaceSpec};
use crate::sampler::{SamplingState, sample_batch};

const VOCAB: usize = 4099;
const ROWS: usize = 8;

struct Bench<B: Backend> {
    b: B,
    kv: B::KvCache,
    world: World,
    random: Random,
    state: SamplingState,
}

fn bench<B: Probe>(make: &impl Fn() -> B, claims: &Claims) -> Bench<B> {
    let mut random = Random::new(claims.seed + 11);
    let (world, num_blocks) = World::new(&mut random, &[64; ROWS], 16);
    let mut b = make();
    b.reserve_workspace(&WorkspaceSpec {
        max_num_batched_tokens: 64,
        max_num_seqs: ROWS,
        max_logit_rows: ROWS,
        max_model_len: 64,
        block_size: 16,
        vocab_size: VOCAB,
        hidden_size: 64,
        max_cols: 128,
    })
    .expect("a small workspace");
    let layout = KvLayout { block_size: 16, num_kv_heads: 1, head_dim: 64, dtype: claims.kv_dtype };
    let group = KvGroup { layers: vec![0], layout, window: None };
    let kv = b.allocate_kv_cache(&[group], num_blocks).expect("a small cache");
    Bench { b, kv, world, random, state: SamplingState::default() }
}

/// Logits with a spread like a model's, so that ties and borders are rare.
fn logits(random: &mut Random, rows: usize) -> Vec<f32> {
    (0..rows * VOCAB).map(|_| random.unit() * random.unit() * 12.0).collect()
}

fn greedy() -> Draw {
    Draw {
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
        mask: None,
        seed: 0,
        choice: 0,
        position: 0,
        state_row: None,
    }
}

fn row(logit_row: usize, draw: Draw, num_logprobs: Option<u32>) -> SamplingRow {
    SamplingRow { logit_row: logit_row as u32, task: RowTask::Draw(draw), num_logprobs }
}

impl<B: Probe> Bench<B> {
    /// One step: the results of the device, and those of the scalar function.
    fn run(
        &mut self,
        values: &[f32],
        sampling: &SamplingBatch,
        state_ops: Vec<StateOp>,
    ) -> (Vec<RowOutput>, Vec<RowOutput>) {
        self.world.lens.fill(0);
        let chunks: Vec<(usize, usize)> = (0..ROWS).map(|s| (s, 1)).collect();
        let mut input: StepInput = self.world.step(&mut self.random, &chunks, VOCAB);
        input.state_ops = state_ops;
        self.state.apply(&input.state_ops);
        let step = self.b.begin_step(&mut self.kv, &input);
        let tensor = self.b.upload_logits(ROWS, VOCAB, values);
        let sampled = self.b.sample(Some(tensor), &step, sampling);
        let got = self.b.wait(sampled).expect("no device fault").rows;
        (got, sample_batch(values, VOCAB, sampling, &mut self.state))
    }
}

/// Greedy rows are equal; random rows follow the same numbers, but for borders of rounding.
pub fn draws<B: Probe>(make: &impl Fn() -> B, claims: &Claims) {
    let mut bench = bench(make, claims);
    let (mut rows, mut differ) = (0, 0);
    for round in 0..40u32 {
        let values = logits(&mut bench.random, ROWS);
        let filters = [
            (0.0, 0, 1.0, 0.0),
            (1.0, 0, 1.0, 0.0),
            (0.7, 40, 1.0, 0.0),
            (1.3, 0, 0.9, 0.0),
            (1.0, 0, 1.0, 0.05),
            (0.8, 50, 0.95, 0.02),
            (1e-8, 3, 0.5, 0.0),
            (2.0, 1, 1.0, 1.0),
        ];
        let draws =
            filters.iter().enumerate().map(|(index, &(temperature, top_k, top_p, min_p))| {
                let draw = Draw {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    seed: bench.random.bits(),
                    choice: index as u32,
                    position: round,
                    ..greedy()
                };
                row(index, draw, (round % 3 == 0).then_some(round % 7))
            });
        let sampling = SamplingBatch { rows: draws.collect(), masks: Vec::new() };
        let (got, want) = bench.run(&values, &sampling, Vec::new());
        assert_eq!(got.len(), ROWS);
        for (index, (got, want)) in got.iter().zip(&want).enumerate() {
            let case = format!("draw, round {round}, row {index}, seed {}", claims.seed);
            assert_eq!(got.fault, None, "{case}");
            let is_random = filters[index].0 >= 0.5 && filters[index].1 != 1;
            rows += 1;
            if got.tokens == want.tokens {
                same_logprobs(&case, got, want);
            } else {
                assert!(is_random, "{case}: {:?} instead of {:?}", got.tokens, want.tokens);
                differ += 1;
            }
        }
    }
    assert!(differ * 50 < rows, "{differ} of {rows} draws differ, seed {}", claims.seed);
}

fn same_logprobs(case: &str, got: &RowOutput, want: &RowOutput) {
    let (Some(got), Some(want)) = (&got.logprobs, &want.logprobs) else {
        assert_eq!(got.logprobs.is_some(), want.logprobs.is_some(), "{case}: logprobs");
        return;
    };
    assert_eq!(got.len(), want.len(), "{case}");
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.rank, want.rank, "{case}: rank");
        assert_eq!(got.chosen.token, want.chosen.token, "{case}");
        assert!((got.chosen.logprob - want.chosen.logprob).abs() < 1e-3, "{case}: {got:?}");
        assert_eq!(got.top.len(), want.top.len(), "{case}");
        for (got, want) in got.top.iter().zip(&want.top) {
            assert_eq!(got.token, want.token, "{case}: top");
            assert!((got.logprob - want.logprob).abs() < 1e-3, "{case}: {got:?}, not {want:?}");
        }
    }
}

/// Bias, bans, allowed lists, masks and penalties, over steps, with resets and copies of state.
pub fn constraints_and_state<B: Probe>(make: &impl Fn() -> B, claims: &Claims) {
    let mut bench = bench(make, claims);
    let words = VOCAB.div_ceil(32);
    for round in 0..12u32 {
        let values = logits(&mut bench.random, ROWS);
        let masks: Vec<u32> = (0..2 * words).map(|_| bench.random.bits() as u32).collect();
        let token = |random: &mut Random| random.below(VOCAB) as u32;
        let r = &mut bench.random;
        let bias = vec![(token(r), 30.0), (token(r), -100.0)];
        let banned: Vec<u32> = (0..VOCAB as u32).filter(|t| t % 3 == round % 3).collect();
        let allowed = vec![token(r), token(r), token(r)];
        let penalties = |state_row| Draw {
            repetition_penalty: 1.4,
            presence_penalty: 1.5,
            frequency_penalty: 0.7,
            state_row: Some(state_row),
            ..greedy()
        };
        let draws = [
            Draw { logit_bias: bias, ..greedy() },
            Draw { banned, ..greedy() },
            Draw { allowed: Some(allowed), ..greedy() },
            Draw { mask: Some(0), ..greedy() },
            Draw { mask: Some(1), ..penalties(4) },
            penalties(5),
            penalties(6),
            Draw { temperature: 0.01, ..penalties(7) },
        ];
        let sampling = SamplingBatch {
            rows: draws.into_iter().enumerate().map(|(i, d)| row(i, d, Some(1))).collect(),
            masks,
        };
        let r = &mut bench.random;
        let state_ops = match round {
            0 => (4..8)
                .map(|row| StateOp::Reset {
                    row,
                    prompt: (0..20).map(|_| token(r)).collect(),
                    output: (0..20).map(|_| token(r)).collect(),
                })
                .collect(),
            5 => vec![StateOp::Copy { from: 5, to: 6 }],
            9 => vec![StateOp::Reset { row: 4, prompt: vec![1, 2, 3], output: Vec::new() }],
            _ => Vec::new(),
        };
        let (got, want) = bench.run(&values, &sampling, state_ops);
        for (index, (got, want)) in got.iter().zip(&want).enumerate() {
            let case = format!("constraint, round {round}, row {index}, seed {}", claims.seed);
            assert_eq!((&got.tokens, got.fault), (&want.tokens, want.fault), "{case}");
            same_logprobs(&case, got, want);
        }
    }
}

/// NaN and empty sets end their row alone; scores of known tokens are right.
pub fn faults_and_scores<B: Probe>(make: &impl Fn() -> B, claims: &Claims) {
    let mut bench = bench(make, claims);
    let mut values = logits(&mut bench.random, ROWS);
    values[VOCAB + 1234] = f32::NAN;
    values[2 * VOCAB..3 * VOCAB].fill(f32::NEG_INFINITY);
    let empty = Draw { allowed: Some(vec![7]), banned: vec![7], ..greedy() };
    let score = |logit_row, target| SamplingRow {
        logit_row,
        task: RowTask::Score { target },
        num_logprobs: Some(5),
    };
    let rows = vec![
        row(0, greedy(), Some(20)),
        row(1, greedy(), None),
        row(2, Draw { temperature: 1.0, ..greedy() }, None),
        row(3, empty, None),
        row(0, Draw { temperature: 1.0, choice: 3, ..greedy() }, None),
        score(4, 0),
        score(4, VOCAB as u32 - 1),
        score(5, 77),
    ];
    let sampling = SamplingBatch { rows, masks: Vec::new() };
    let (got, want) = bench.run(&values, &sampling, Vec::new());
    for (index, (got, want)) in got.iter().zip(&want).enumerate() {
        let case = format!("fault or score, row {index}, seed {}", claims.seed);
        assert_eq!((&got.tokens, got.fault), (&want.tokens, want.fault), "{case}");
        same_logprobs(&case, got, want);
    }
}

/// A step may name tokens that the previous one drew, before the host has seen them.
pub fn tokens_of_the_previous_step<B: Probe>(make: &impl Fn() -> B, claims: &Claims) {
    let mut bench = bench(make, claims);
    let table = bench.random.weight(WeightFormat::F32, VOCAB, 64);
    let vocab = bench.b.load_vocab(&table).expect("a table loads");
    let chunks: Vec<(usize, usize)> = (0..ROWS).map(|s| (s, 1)).collect();
    let first = bench.world.step(&mut bench.random, &chunks, VOCAB);
    let mut second = bench.world.step(&mut bench.random, &chunks, VOCAB);
    for (index, token) in second.batch.token_ids.iter_mut().enumerate() {
        if index % 3 != 2 {
            *token = TokenSource::SampledBy { row: (ROWS - 1 - index) as u32 };
        }
    }
    let values = logits(&mut bench.random, ROWS);
    let sampling = SamplingBatch {
        rows: (0..ROWS).map(|index| row(index, greedy(), None)).collect(),
        masks: Vec::new(),
    };
    let step = bench.b.begin_step(&mut bench.kv, &first);
    let tensor = bench.b.upload_logits(ROWS, VOCAB, &values);
    let sampled = bench.b.sample(Some(tensor), &step, &sampling);
    let next = bench.b.begin_step(&mut bench.kv, &second);
    let drawn = bench.b.wait(sampled).expect("no device fault").rows;
    let embedded = bench.b.embed(&vocab, &next);
    let got = bench.b.download(&embedded);
    let sampled = bench.b.sample(None, &next, &SamplingBatch::default());
    assert!(bench.b.wait(sampled).expect("no device fault").rows.is_empty());
    for (index, token) in second.batch.token_ids.iter().enumerate() {
        let token = match *token {
            TokenSource::Known(token) => token,
            TokenSource::SampledBy { row } => drawn[row as usize].tokens[0],
        };
        let mut want = vec![0.0; 64];
        crate::dequantize::row(table.format, table.row(token as usize), &mut want);
        let case = format!("token {index} of the second step, seed {}", claims.seed);
        super::close(&case, &got[index * 64..(index + 1) * 64], &want, claims.elementwise);
    }
}
