//! Sampling: the function of `pagedllm_backend::sampler`, rows in parallel, with a fast path for
//! plain greedy rows.

use std::collections::HashSet;

use pagedllm_backend::sampler::{MIN_TEMPERATURE, SamplingState, draw_row, logprobs, sample_batch};
use pagedllm_core::{Draw, RowFault, RowOutput, RowTask, SamplingBatch, SamplingRow};

use crate::simd::Kernels;
use crate::threads::{Chunks, ThreadPool};

fn is_plain_greedy(draw: &Draw) -> bool {
    draw.temperature < MIN_TEMPERATURE
        && draw.logit_bias.is_empty()
        && draw.banned.is_empty()
        && draw.allowed.is_none()
        && draw.mask.is_none()
        && (draw.state_row.is_none()
            || (draw.repetition_penalty == 1.0
                && draw.presence_penalty == 0.0
                && draw.frequency_penalty == 0.0))
}

fn sample_row(
    kernels: &Kernels,
    logits: &[f32],
    row: &SamplingRow,
    masks: &[u32],
    state: &SamplingState,
) -> RowOutput {
    let not_a_number = || RowOutput { fault: Some(RowFault::NotANumber), ..RowOutput::default() };
    let token = match &row.task {
        RowTask::Score { target } => kernels.argmax(logits).map(|_| *target),
        RowTask::Draw(draw) if is_plain_greedy(draw) => {
            kernels.argmax(logits).map(|token| token as u32)
        }
        RowTask::Draw(draw) => {
            let words = logits.len().div_ceil(32);
            let mask = draw.mask.map(|mask| &masks[mask as usize * words..][..words]);
            let seen = draw.state_row.and_then(|row| state.get(row));
            return draw_row(logits, draw, row, mask, seen);
        }
    };
    let Some(token) = token else { return not_a_number() };
    let logprobs = row.num_logprobs.map(|count| vec![logprobs(logits, token, count as usize)]);
    RowOutput { tokens: vec![token], logprobs, fault: None }
}

fn state_row(row: &SamplingRow) -> Option<u32> {
    match &row.task {
        RowTask::Draw(draw) => draw.state_row,
        RowTask::Score { .. } => None,
    }
}

/// Draws every row of `sampling` from `logits`, `[R, vocab_size]`, and counts what was drawn.
pub fn sample(
    pool: &mut ThreadPool,
    kernels: &Kernels,
    (logits, vocab_size): (&[f32], usize),
    sampling: &SamplingBatch,
    state: &mut SamplingState,
) -> Vec<RowOutput> {
    let mut seen = HashSet::new();
    let shares_state = sampling.rows.iter().filter_map(state_row).any(|row| !seen.insert(row));
    if shares_state {
        // A later row must see what an earlier one drew.
        return sample_batch(logits, vocab_size, sampling, state);
    }
    let mut outputs = vec![RowOutput::default(); sampling.rows.len()];
    let before = &*state;
    pool.for_parts(Chunks::new(&mut outputs, 1), |index, output, _| {
        let row = &sampling.rows[index];
        let logits = &logits[row.logit_row as usize * vocab_size..][..vocab_size];
        output[0] = sample_row(kernels, logits, row, &sampling.masks, before);
    });
    for (row, output) in sampling.rows.iter().zip(&outputs) {
        if let (Some(state_row), Some(&token)) = (state_row(row), output.tokens.first()) {
            state.count(state_row, token);
        }
    }
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;
    use crate::testing::Random;

    fn random_draw(random: &mut Random, vocab_size: usize) -> Draw {
        let chance = |random: &mut Random| random.below(3) == 0;
        Draw {
            temperature: if chance(random) { 0.0 } else { 0.5 + random.float() * 0.4 },
            top_k: if chance(random) { random.below(20) as u32 } else { 0 },
            top_p: if chance(random) { 0.9 } else { 1.0 },
            min_p: if chance(random) { 0.05 } else { 0.0 },
            repetition_penalty: if chance(random) { 1.3 } else { 1.0 },
            presence_penalty: if chance(random) { 0.5 } else { 0.0 },
            frequency_penalty: 0.0,
            logit_bias: if chance(random) { vec![(3, 2.0)] } else { vec![] },
            banned: if chance(random) { vec![random.below(vocab_size) as u32] } else { vec![] },
            allowed: if chance(random) { Some(vec![1, 5, 9]) } else { None },
            mask: if chance(random) { Some(0) } else { None },
            seed: random.next(),
            choice: 0,
            position: random.below(100) as u32,
            state_row: if chance(random) { Some(random.below(4) as u32) } else { None },
        }
    }

    #[test]
    fn rows_match_the_reference_function() {
        let kernels = Kernels::new(Isa::detect()).unwrap();
        let mut pool = ThreadPool::new(2).unwrap();
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let vocab_size = 10 + random.below(300);
            let mut logits = random.floats(3 * vocab_size);
            if seed % 5 == 0 {
                logits[random.below(vocab_size)] = f32::NAN;
            }
            let rows: Vec<_> = (0..6)
                .map(|_| SamplingRow {
                    logit_row: random.below(3) as u32,
                    task: if random.below(6) == 0 {
                        RowTask::Score { target: random.below(vocab_size) as u32 }
                    } else {
                        RowTask::Draw(random_draw(&mut random, vocab_size))
                    },
                    num_logprobs: (random.below(2) == 0).then_some(3),
                })
                .collect();
            let masks = (0..vocab_size.div_ceil(32)).map(|_| random.next() as u32).collect();
            let batch = SamplingBatch { rows, masks };
            let (mut want_state, mut state) = (SamplingState::default(), SamplingState::default());
            for _ in 0..3 {
                let want = sample_batch(&logits, vocab_size, &batch, &mut want_state);
                let got = sample(&mut pool, &kernels, (&logits, vocab_size), &batch, &mut state);
                assert_eq!(got, want, "seed {seed}");
            }
        }
    }
}
