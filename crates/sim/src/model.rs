//! The model of the simulator: a function of the tokens so far. Both the fake executor, which
//! sees the tokens through block tables, and the naive generator, which sees a list, ask it.

use pagedllm_core::{
    Draw, FinishReason, RowFault, SamplingParams, TokenId, TokenLogprob, TokenLogprobs,
};
use pagedllm_engine::{Constraint, ConstraintError};

use crate::random::mix;

/// What the cache holds for a token: it depends on all tokens before it, as real KV does.
pub type Chain = u64;

/// Before the first token.
pub const NO_TOKENS: Chain = 0;

/// The chain after one more token.
#[must_use]
pub fn extend(chain: Chain, token: TokenId) -> Chain {
    mix(chain, u64::from(token) + 1)
}

/// Tokens that penalties know of: order does not matter, number does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    prompt: u64,
    output: u64,
}

impl Seen {
    /// From lists.
    #[must_use]
    pub fn new(prompt: &[TokenId], output: &[TokenId]) -> Self {
        let sum = |tokens: &[TokenId]| {
            tokens.iter().fold(0u64, |sum, &token| sum.wrapping_add(mix(9, u64::from(token))))
        };
        Self { prompt: sum(prompt), output: sum(output) }
    }
    /// Counts a token that was drawn.
    pub fn draw(&mut self, token: TokenId) {
        self.output = self.output.wrapping_add(mix(9, u64::from(token)));
    }
    const fn hash(self) -> u64 {
        mix(self.prompt, self.output)
    }
}

/// A model: how many tokens there are and how often its logits are not numbers.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Width of the logits.
    pub vocab_size: usize,
    /// One position in this many yields a fault; 0 for none.
    pub fault_every: u64,
}

impl Model {
    /// Draws the next token after `chain`.
    ///
    /// # Errors
    /// The logits are not numbers, or nothing is allowed.
    pub fn draw(
        &self,
        chain: Chain,
        draw: &Draw,
        mask: Option<&[u32]>,
        seen: Option<Seen>,
    ) -> Result<TokenId, RowFault> {
        if self.fault_every > 0 && mix(chain, 77).is_multiple_of(self.fault_every) {
            return Err(RowFault::NotANumber);
        }
        let mut key = chain;
        if draw.temperature > 0.0 {
            let choice = u64::from(draw.choice) << 32 | u64::from(draw.position);
            key = mix(key, mix(draw.seed, choice));
        }
        if let Some(seen) = seen {
            key = mix(key, seen.hash());
        }
        for (token, bias) in &draw.logit_bias {
            key = mix(key, u64::from(*token) ^ u64::from(bias.to_bits()));
        }
        let first = key % self.vocab_size as u64;
        let is_allowed = |token: &TokenId| {
            !draw.banned.contains(token)
                && draw.allowed.as_ref().is_none_or(|allowed| allowed.contains(token))
                && mask.is_none_or(|mask| mask[*token as usize / 32] >> (token % 32) & 1 == 1)
        };
        let tokens = (0..self.vocab_size as u64)
            .map(|step| ((first + step) % self.vocab_size as u64) as TokenId);
        tokens.into_iter().find(is_allowed).ok_or(RowFault::NoAllowedToken)
    }

    /// Log-probabilities of `token` after `chain`.
    #[must_use]
    pub fn logprobs(&self, chain: Chain, token: TokenId, num_top: u32) -> TokenLogprobs {
        let logprob = |token: TokenId| {
            let hash = mix(chain, mix(5, u64::from(token)));
            TokenLogprob { token, logprob: -((hash % 4096) as f32) / 256.0 }
        };
        let top = (0..num_top.min(self.vocab_size as u32)).map(logprob).collect();
        TokenLogprobs { chosen: logprob(token), rank: 1, top }
    }
}

/// A grammar whose state is a hash of what it accepted.
#[derive(Clone, Debug)]
pub struct HashConstraint {
    state: u64,
    vocab_size: usize,
    /// One state in this many can't go on; 0 for none.
    fail_every: u64,
}

impl HashConstraint {
    /// A constraint that depends on `key`.
    #[must_use]
    pub const fn new(key: u64, vocab_size: usize, fail_every: u64) -> Self {
        Self { state: key, vocab_size, fail_every }
    }
}

impl Constraint for HashConstraint {
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError> {
        if self.fail_every > 0 && mix(self.state, 3).is_multiple_of(self.fail_every) {
            return Err(ConstraintError("this state allows nothing".into()));
        }
        for token in 0..self.vocab_size as u64 {
            let is_allowed = !mix(self.state, token).is_multiple_of(4);
            out[token as usize / 32] |= u32::from(is_allowed) << (token % 32);
        }
        Ok(())
    }
    fn accept(&mut self, token: TokenId) {
        self.state = mix(self.state, u64::from(token));
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// What one choice must come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// Its log-probabilities, where asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Its end.
    pub reason: FinishReason,
}

/// A request as the naive generator sees it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Prompt tokens.
    pub prompt: &'a [TokenId],
    /// Sampling parameters.
    pub params: &'a SamplingParams,
    /// End-of-sequence tokens.
    pub eos_token_ids: &'a [TokenId],
    /// Key of the random numbers.
    pub seed: u64,
    /// Longest sequence.
    pub max_len: usize,
    /// Its grammar.
    pub constraint: Option<&'a HashConstraint>,
}

impl Model {
    /// Generates one choice with a loop over a list: no blocks, no batch, no schedule.
    #[must_use]
    pub fn generate(&self, asked: Asked<'_>, choice: u32) -> Expected {
        let Asked { prompt, params, eos_token_ids, seed, max_len, constraint } = asked;
        let mut expected =
            Expected { tokens: Vec::new(), logprobs: Vec::new(), reason: FinishReason::Length };
        let mut chain = prompt.iter().fold(NO_TOKENS, |chain, &token| extend(chain, token));
        let mut constraint = constraint.cloned();
        let mut stops = params.stop_token_ids.clone();
        if !params.ignore_eos {
            stops.extend_from_slice(eos_token_ids);
        }
        let num_logprobs = match params.logprobs {
            None if params.best_of > params.n => Some(0),
            asked => asked,
        };
        while expected.tokens.len() < params.max_tokens as usize
            && prompt.len() + expected.tokens.len() < max_len
        {
            let position = (prompt.len() + expected.tokens.len()) as u32;
            let may_stop = expected.tokens.len() >= params.min_tokens as usize;
            let banned = if may_stop { Vec::new() } else { stops.clone() };
            let draw = draw_of(params, seed, choice, position, banned);
            let seen = params.has_penalties().then(|| Seen::new(prompt, &expected.tokens));
            let mut mask = vec![0; self.vocab_size.div_ceil(32)];
            let masked = constraint.as_mut().map(|constraint| constraint.mask(&mut mask));
            if let Some(Err(_)) = masked {
                return Expected { reason: FinishReason::Fault, ..expected };
            }
            let mask = masked.map(|_| &mask[..]);
            let Ok(token) = self.draw(chain, &draw, mask, seen) else {
                return Expected { reason: FinishReason::Fault, ..expected };
            };
            expected.tokens.push(token);
            expected.logprobs.extend(num_logprobs.map(|top| self.logprobs(chain, token, top)));
            chain = extend(chain, token);
            if let Some(constraint) = &mut constraint {
                constraint.accept(token);
            }
            if may_stop && stops.contains(&token) {
                return Expected { reason: FinishReason::StopToken(token), ..expected };
            }
        }
        expected
    }

    /// Log-probabilities of the prompt from its second token on.
    #[must_use]
    pub fn prompt_logprobs(&self, prompt: &[TokenId], num_top: u32) -> Vec<TokenLogprobs> {
        let mut chain = NO_TOKENS;
        let pairs = prompt.windows(2).map(|pair| {
            chain = extend(chain, pair[0]);
            self.logprobs(chain, pair[1], num_top)
        });
        pairs.collect()
    }
}

fn draw_of(
    params: &SamplingParams,
    seed: u64,
    choice: u32,
    position: u32,
    banned: Vec<TokenId>,
) -> Draw {
    Draw {
        temperature: params.temperature,
        top_k: params.top_k,
        top_p: params.top_p,
        min_p: params.min_p,
        repetition_penalty: params.repetition_penalty,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        logit_bias: params.logit_bias.clone(),
        banned,
        allowed: params.allowed_token_ids.clone(),
        mask: None,
        seed,
        choice,
        position,
        state_row: None,
    }
}
