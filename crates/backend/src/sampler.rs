//! The sampling function: from one row of logits to one token. Its scalar form is the meaning;
//! devices implement the same function and are tested against it.
//!
//! Order: raw log-probabilities; allowed list, mask, bans; bias; penalties; greedy where the
//! temperature is 0; else temperature, top-k, top-p, min-p, and one draw by inverse distribution
//! in token order. Ties are broken by the lower token id, everywhere.
//!
//! Random numbers come from Philox4x32-10 (Salmon et al. 2011, Parallel Random Numbers: As Easy
//! as 1, 2, 3, section 4), keyed by the seed and counted by (choice, position), so they depend on
//! nothing else in the batch.

use std::collections::HashMap;

use pagedllm_core::{
    Draw, RowFault, RowOutput, RowTask, SamplingBatch, SamplingRow, StateOp, TokenId, TokenLogprob,
    TokenLogprobs,
};

/// Temperatures below this are greedy: dividing by them would overflow.
pub const MIN_TEMPERATURE: f32 = 1e-5;

/// Tokens that one sequence has seen, for the penalties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenTokens {
    counts: HashMap<TokenId, Seen>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    in_prompt: bool,
    generated: u32,
}

impl SeenTokens {
    /// The state of a sequence with these tokens.
    #[must_use]
    pub fn new(prompt: &[TokenId], output: &[TokenId]) -> Self {
        let mut seen = Self::default();
        for &token in prompt {
            seen.counts.entry(token).or_default().in_prompt = true;
        }
        for &token in output {
            seen.count(token);
        }
        seen
    }
    /// Counts a generated token.
    pub fn count(&mut self, token: TokenId) {
        self.counts.entry(token).or_default().generated += 1;
    }
}

/// Penalty state of all sequences, by state row.
#[derive(Clone, Debug, Default)]
pub struct SamplingState {
    rows: HashMap<u32, SeenTokens>,
}

impl SamplingState {
    /// Applies the changes of a step, in order.
    pub fn apply(&mut self, ops: &[StateOp]) {
        for op in ops {
            match op {
                StateOp::Reset { row, prompt, output } => {
                    self.rows.insert(*row, SeenTokens::new(prompt, output));
                }
                StateOp::Copy { from, to } => {
                    let copy = self.rows.get(from).cloned().unwrap_or_default();
                    self.rows.insert(*to, copy);
                }
            }
        }
    }
    /// The state of a row, if it has one.
    #[must_use]
    pub fn get(&self, row: u32) -> Option<&SeenTokens> {
        self.rows.get(&row)
    }
    /// Counts a drawn token.
    pub fn count(&mut self, row: u32, token: TokenId) {
        self.rows.entry(row).or_default().count(token);
    }
}

/// Runs a whole sampling batch over `logits`, `[R, vocab_size]`, and counts what was drawn.
///
/// # Panics
/// If a row names logits that are not there.
pub fn sample_batch(
    logits: &[f32],
    vocab_size: usize,
    sampling: &SamplingBatch,
    state: &mut SamplingState,
) -> Vec<RowOutput> {
    let words = vocab_size.div_ceil(32);
    let mut outputs = Vec::with_capacity(sampling.rows.len());
    for row in &sampling.rows {
        let logits = &logits[row.logit_row as usize * vocab_size..][..vocab_size];
        let output = match &row.task {
            RowTask::Score { target } => score(logits, *target, row),
            RowTask::Draw(draw) => {
                let mask = draw.mask.map(|m| &sampling.masks[m as usize * words..][..words]);
                let seen = draw.state_row.and_then(|row| state.get(row));
                let output = draw_row(logits, draw, row, mask, seen);
                if let (Some(state_row), Some(&token)) = (draw.state_row, output.tokens.first()) {
                    state.count(state_row, token);
                }
                output
            }
        };
        outputs.push(output);
    }
    outputs
}

fn fault(fault: RowFault) -> RowOutput {
    RowOutput { fault: Some(fault), ..RowOutput::default() }
}

fn is_sound(logits: &[f32]) -> bool {
    let mut best = f32::NEG_INFINITY;
    for &logit in logits {
        if logit.is_nan() {
            return false;
        }
        best = best.max(logit);
    }
    best.is_finite()
}

fn score(logits: &[f32], target: TokenId, row: &SamplingRow) -> RowOutput {
    if !is_sound(logits) {
        return fault(RowFault::NotANumber);
    }
    let logprobs = row.num_logprobs.map(|n| vec![logprobs(logits, target, n as usize)]);
    RowOutput { tokens: vec![target], logprobs, fault: None }
}

/// Draws one token from one row of logits.
///
/// `mask` has `ceil(V / 32)` words, `seen` is the penalty state.
#[must_use]
pub fn draw_row(
    logits: &[f32],
    draw: &Draw,
    row: &SamplingRow,
    mask: Option<&[u32]>,
    seen: Option<&SeenTokens>,
) -> RowOutput {
    if !is_sound(logits) {
        return fault(RowFault::NotANumber);
    }
    let adjusted = adjust(logits, draw, mask, seen);
    let greedy = argmax(&adjusted);
    if adjusted[greedy as usize] == f32::NEG_INFINITY {
        return fault(RowFault::NoAllowedToken);
    }
    let token =
        if draw.temperature < MIN_TEMPERATURE { greedy } else { draw_from(&adjusted, draw) };
    let logprobs = row.num_logprobs.map(|n| vec![logprobs(logits, token, n as usize)]);
    RowOutput { tokens: vec![token], logprobs, fault: None }
}

/// Logits after allowed list, mask, bans, bias and penalties.
fn adjust(
    logits: &[f32],
    draw: &Draw,
    mask: Option<&[u32]>,
    seen: Option<&SeenTokens>,
) -> Vec<f32> {
    let mut adjusted = logits.to_vec();
    if let Some(allowed) = &draw.allowed {
        adjusted.fill(f32::NEG_INFINITY);
        for &token in allowed {
            adjusted[token as usize] = logits[token as usize];
        }
    }
    if let Some(mask) = mask {
        for (token, logit) in adjusted.iter_mut().enumerate() {
            if mask[token / 32] >> (token % 32) & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    for &token in &draw.banned {
        adjusted[token as usize] = f32::NEG_INFINITY;
    }
    for &(token, bias) in &draw.logit_bias {
        adjusted[token as usize] += bias;
    }
    if let Some(seen) = seen {
        for (&token, seen) in &seen.counts {
            let logit = &mut adjusted[token as usize];
            if *logit > 0.0 {
                *logit /= draw.repetition_penalty;
            } else {
                *logit *= draw.repetition_penalty;
            }
            if seen.generated > 0 {
                *logit -= draw.frequency_penalty * seen.generated as f32 + draw.presence_penalty;
            }
        }
    }
    adjusted
}

/// The most likely token; the lower id where several are.
#[must_use]
pub fn argmax(logits: &[f32]) -> TokenId {
    let mut best = 0;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = token;
        }
    }
    best as TokenId
}

fn draw_from(adjusted: &[f32], draw: &Draw) -> TokenId {
    let best = adjusted.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| f64::from((logit - best) / draw.temperature).exp();
    let mut kept: Vec<(TokenId, f64)> = Vec::with_capacity(adjusted.len());
    for (token, &logit) in adjusted.iter().enumerate() {
        if logit > f32::NEG_INFINITY {
            kept.push((token as TokenId, weight(logit)));
        }
    }
    let narrows = (draw.top_k > 0 && (draw.top_k as usize) < kept.len()) || draw.top_p < 1.0;
    if narrows {
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if draw.top_k > 0 {
            kept.truncate(draw.top_k as usize);
        }
        if draw.top_p < 1.0 {
            let wanted = f64::from(draw.top_p) * kept.iter().map(|k| k.1).sum::<f64>();
            let mut sum = 0.0;
            let keep = kept.iter().position(|k| {
                sum += k.1;
                sum >= wanted
            });
            kept.truncate(keep.map_or(kept.len(), |last| last + 1));
        }
        kept.sort_by_key(|k| k.0);
    }
    // The best token weighs 1, so at least it survives.
    kept.retain(|k| k.1 >= f64::from(draw.min_p));
    let total: f64 = kept.iter().map(|k| k.1).sum();
    let target = uniform(draw.seed, draw.choice, draw.position) * total;
    let mut sum = 0.0;
    for &(token, weight) in &kept {
        sum += weight;
        if sum > target {
            return token;
        }
    }
    kept.last().expect("the best token is always kept").0
}

/// Log-probabilities of `chosen` and of the `count` most likely tokens.
#[must_use]
pub fn logprobs(logits: &[f32], chosen: TokenId, count: usize) -> TokenLogprobs {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - best).exp()).sum();
    let log_sum = f64::from(best) + sum.ln();
    let logprob = |token: TokenId| TokenLogprob {
        token,
        logprob: ((f64::from(logits[token as usize]) - log_sum) as f32).min(0.0),
    };
    let before =
        |a: TokenId, b: TokenId| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
    let rank = 1 + (0..logits.len() as TokenId).filter(|&t| before(t, chosen).is_lt()).count();
    let mut order: Vec<TokenId> = (0..logits.len() as TokenId).collect();
    let count = count.min(order.len());
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count, |&a, &b| before(a, b));
    }
    order.truncate(count);
    order.sort_by(|&a, &b| before(a, b));
    TokenLogprobs {
        chosen: logprob(chosen),
        rank: rank as u32,
        top: order.into_iter().map(logprob).collect(),
    }
}

/// One number in `[0, 1)` for a draw: the first 32-bit word of Philox over 2^32.
#[must_use]
pub fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    let counter = [choice, position, 0, 0];
    f64::from(philox(counter, [seed as u32, (seed >> 32) as u32])[0]) / 4_294_967_296.0
}

/// Philox4x32-10.
#[must_use]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let wide = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..10 {
        let (high0, low0) = wide(0xD251_1F53, counter[0]);
        let (high1, low1) = wide(0xCD9E_8D57, counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Draw {
        Draw {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: vec![],
            banned: vec![],
            allowed: None,
            mask: None,
            seed: 7,
            choice: 0,
            position: 0,
            state_row: None,
        }
    }

    fn token(logits: &[f32], draw: &Draw) -> TokenId {
        let row =
            SamplingRow { logit_row: 0, task: RowTask::Draw(draw.clone()), num_logprobs: None };
        draw_row(logits, draw, &row, None, None).tokens[0]
    }

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn tiny_temperatures_and_filters_are_greedy() {
        let logits = [0.5, 3.0, 2.9, -1.0];
        for temperature in [0.0, 1e-8, 1e-38, f32::from_bits(1)] {
            assert_eq!(token(&logits, &Draw { temperature, ..plain() }), 1);
        }
        for position in 0..100 {
            let draw = Draw { position, ..plain() };
            assert_eq!(token(&logits, &Draw { top_p: 1e-9, ..draw.clone() }), 1);
            assert_eq!(token(&logits, &Draw { top_p: 0.0, ..draw.clone() }), 1);
            assert_eq!(token(&logits, &Draw { min_p: 1.0, ..draw.clone() }), 1);
            assert_eq!(token(&logits, &Draw { top_k: 1, ..draw }), 1);
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.0f32, 1.0, 2.0, f32::NEG_INFINITY];
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        let mut counts = [0u32; 4];
        for position in 0..20_000 {
            counts[token(&logits, &Draw { position, ..plain() }) as usize] += 1;
        }
        for (&logit, &count) in logits.iter().zip(&counts) {
            let want = f64::from(logit).exp() / total;
            assert!((f64::from(count) / 20_000.0 - want).abs() < 0.02, "{counts:?}");
        }
    }

    #[test]
    fn choices_and_positions_draw_different_numbers() {
        let mut numbers: Vec<_> = (0..4)
            .flat_map(|choice| (0..4).map(move |position| uniform(7, choice, position).to_bits()))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 16);
        assert_ne!(uniform(1 << 53, 0, 0), uniform((1 << 53) + 1, 0, 0));
    }

    #[test]
    fn penalties_tell_prompt_from_output() {
        let logits = [2.0, 1.9];
        let seen = SeenTokens::new(&[0, 0, 0], &[]);
        let row = |draw: &Draw| SamplingRow {
            logit_row: 0,
            task: RowTask::Draw(draw.clone()),
            num_logprobs: None,
        };
        let greedy = Draw { temperature: 0.0, ..plain() };
        let frequency = Draw { frequency_penalty: 2.0, presence_penalty: 2.0, ..greedy.clone() };
        assert_eq!(draw_row(&logits, &frequency, &row(&frequency), None, Some(&seen)).tokens, [0]);
        let repetition = Draw { repetition_penalty: 1.5, ..greedy };
        assert_eq!(
            draw_row(&logits, &repetition, &row(&repetition), None, Some(&seen)).tokens,
            [1]
        );
        let seen = SeenTokens::new(&[], &[0]);
        assert_eq!(draw_row(&logits, &frequency, &row(&frequency), None, Some(&seen)).tokens, [1]);
    }

    #[test]
    fn faults_are_told_apart() {
        let draw = Draw { allowed: Some(vec![1]), banned: vec![1], ..plain() };
        let row =
            SamplingRow { logit_row: 0, task: RowTask::Draw(draw.clone()), num_logprobs: None };
        let nan = draw_row(&[f32::NAN, 0.0], &draw, &row, None, None);
        assert_eq!(nan.fault, Some(RowFault::NotANumber));
        let none = draw_row(&[1.0, 0.0], &draw, &row, None, None);
        assert_eq!(none.fault, Some(RowFault::NoAllowedToken));
    }

    #[test]
    fn logprobs_of_a_sure_token_are_finite() {
        let result = logprobs(&[100.0, 0.0, 0.0], 0, 2);
        assert!(result.chosen.logprob <= 0.0 && result.chosen.logprob > -1e-6);
        assert_eq!(result.rank, 1);
        assert_eq!(result.top.iter().map(|t| t.token).collect::<Vec<_>>(), [0, 1]);
    }
}
