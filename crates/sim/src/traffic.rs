//! Requests drawn from a seed, and what each of them must come to.

use std::time::Duration;

use pagedllm_core::{SamplingParams, TokenId};
use pagedllm_engine::RequestId;

use crate::model::{Asked, Expected, HashConstraint, Model};
use crate::options::Options;
use crate::random::Random;

/// A request and everything that a naive generator needs to answer it.
#[derive(Clone, Debug)]
pub struct SimRequest {
    /// Its name.
    pub id: RequestId,
    /// Prompt tokens.
    pub prompt: Vec<TokenId>,
    /// Sampling parameters.
    pub params: SamplingParams,
    /// End-of-sequence tokens.
    pub eos_token_ids: Vec<TokenId>,
    /// Lower values run first.
    pub priority: i32,
    /// Salt of the prefix cache.
    pub salt: Vec<u8>,
    /// Key of the random numbers.
    pub seed: u64,
    /// Time to live.
    pub deadline: Option<Duration>,
    /// Grammar.
    pub constraint: Option<HashConstraint>,
}

impl SimRequest {
    /// Draws the next request of a world.
    #[must_use]
    pub fn new(number: u64, options: &Options, random: &mut Random) -> Self {
        let vocab = options.model.vocab_size;
        let prompt = prompt(options, random);
        let max_tokens = random.between(0, options.max_tokens) as u32;
        let choices = if random.chance(options.choices_percent) { random.between(1, 4) } else { 1 };
        let best_of = choices + usize::from(random.chance(20));
        let mut params = SamplingParams {
            temperature: random.pick(&[0.0, 1.0]),
            max_tokens,
            min_tokens: random.between(0, 3).min(max_tokens as usize) as u32,
            ignore_eos: random.chance(20),
            n: choices as u32,
            best_of: best_of as u32,
            logprobs: random.chance(20).then(|| random.between(0, 3) as u32),
            ..SamplingParams::default()
        };
        for _ in 0..random.below(3) {
            params.stop_token_ids.push(random.below(vocab) as TokenId);
        }
        if random.chance(options.penalty_percent) {
            params.frequency_penalty = 0.5;
            params.repetition_penalty = 1.1;
        }
        if random.chance(options.score_percent) {
            params.prompt_logprobs = Some(random.between(0, 2) as u32);
        }
        let constraint = random
            .chance(options.constraint_percent)
            .then(|| HashConstraint::new(random.next(), vocab, random.pick(&[0, 40])));
        Self {
            id: RequestId::new(number),
            prompt,
            params,
            eos_token_ids: vec![random.below(vocab) as TokenId, 1],
            priority: random.pick(&[0, 0, 0, -1, 1]),
            salt: random.pick(&[&b"a"[..], b"b"]).to_vec(),
            seed: random.next(),
            deadline: random
                .chance(options.deadline_percent)
                .then(|| Duration::from_millis(random.between(0, 100) as u64)),
            constraint,
        }
    }

    /// What `choice` must come to in sequences of at most `max_len`.
    #[must_use]
    pub fn expected(&self, model: &Model, max_len: usize, choice: u32) -> Expected {
        let asked = Asked {
            prompt: &self.prompt,
            params: &self.params,
            eos_token_ids: &self.eos_token_ids,
            seed: self.seed,
            max_len,
            constraint: self.constraint.as_ref(),
        };
        model.generate(asked, choice)
    }
}

/// A prompt that often begins as others do.
fn prompt(options: &Options, random: &mut Random) -> Vec<TokenId> {
    let vocab = options.model.vocab_size;
    let len = random.between(1, options.max_prompt);
    let shared = if random.chance(60) { random.between(0, len) } else { 0 };
    let mut prefix = Random::new(random.below(options.num_prefixes) as u64);
    let mut prompt: Vec<_> = (0..shared).map(|_| prefix.below(vocab) as TokenId).collect();
    prompt.extend((shared..len).map(|_| random.below(vocab) as TokenId));
    prompt
}
