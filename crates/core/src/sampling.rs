//! Sampling parameters of a request, and the rows of a step that sample.

use crate::TokenId;

/// How a request samples and when it stops. Checked once, before anything is queued.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the most likely tokens whose probabilities sum to this; 0 keeps only the first.
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely one.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that were generated.
    pub presence_penalty: f32,
    /// Subtracted once for each time that a token was generated.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// If set, no other token is ever drawn.
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Same seed, same random numbers, whatever else runs. `None` draws one.
    pub seed: Option<i64>,
    /// Tokens to generate at most; 0 only scores the prompt.
    pub max_tokens: u32,
    /// No stop or end-of-sequence token before this many.
    pub min_tokens: u32,
    /// Tokens that end the sequence, beside the model's own.
    pub stop_token_ids: Vec<TokenId>,
    /// Whether the model's end-of-sequence tokens are ordinary tokens.
    pub ignore_eos: bool,
    /// Choices to return.
    pub n: u32,
    /// Choices to generate; the best `n` by mean log-probability are returned.
    pub best_of: u32,
    /// Log-probabilities of each generated token and of this many others.
    pub logprobs: Option<u32>,
    /// Log-probabilities of each prompt token and of this many others.
    pub prompt_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    /// vLLM's defaults, but for `max_tokens`: 16 tokens at temperature 1.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            seed: None,
            max_tokens: 16,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            n: 1,
            best_of: 1,
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// Most choices that one request may ask for.
const MAX_CHOICES: u32 = 128;
/// Most alternatives a token that logprobs may list.
const MAX_LOGPROBS: u32 = 20;
/// Most entries of `logit_bias`, `stop_token_ids` and `allowed_token_ids`.
const MAX_TOKEN_LIST: usize = 4096;

/// A parameter outside its range. `param` is the field's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{param}: {message}")]
pub struct InvalidParams {
    /// Field name as callers write it.
    pub param: &'static str,
    /// What is wrong and what would be right.
    pub message: String,
}

impl SamplingParams {
    /// Checks every range. `vocab_size` is the width of the logits.
    ///
    /// # Errors
    /// The first parameter that is out of range, with the limit.
    pub fn check(&self, vocab_size: usize) -> Result<(), InvalidParams> {
        let fail = |param, message: String| Err(InvalidParams { param, message });
        let ranges = [
            ("temperature", self.temperature, 0.0, 2.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
        ];
        for (param, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return fail(param, format!("{value} is not between {low} and {high}"));
            }
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return fail("repetition_penalty", "must be a finite number above 0".into());
        }
        if self.n == 0 || self.n > MAX_CHOICES {
            return fail("n", format!("{} is not between 1 and {MAX_CHOICES}", self.n));
        }
        if self.best_of < self.n || self.best_of > MAX_CHOICES {
            return fail(
                "best_of",
                format!("{} is not between n = {} and {MAX_CHOICES}", self.best_of, self.n),
            );
        }
        if self.min_tokens > self.max_tokens {
            return fail(
                "min_tokens",
                format!("{} is more than max_tokens = {}", self.min_tokens, self.max_tokens),
            );
        }
        for (param, count) in
            [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)]
        {
            if count.is_some_and(|count| count > MAX_LOGPROBS) {
                return fail(param, format!("at most {MAX_LOGPROBS} alternatives a token"));
            }
        }
        let lists: [(&str, Vec<TokenId>); 3] = [
            ("logit_bias", self.logit_bias.iter().map(|&(token, _)| token).collect()),
            ("stop_token_ids", self.stop_token_ids.clone()),
            ("allowed_token_ids", self.allowed_token_ids.clone().unwrap_or_default()),
        ];
        for (param, tokens) in lists {
            if tokens.len() > MAX_TOKEN_LIST {
                return fail(param, format!("{} entries; at most {MAX_TOKEN_LIST}", tokens.len()));
            }
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
                return fail(
                    param,
                    format!("token id {token} is outside the vocabulary of {vocab_size}"),
                );
            }
        }
        if self.allowed_token_ids.as_ref().is_some_and(Vec::is_empty) {
            return fail("allowed_token_ids", "must not be empty".into());
        }
        if let Some((token, bias)) =
            self.logit_bias.iter().find(|(_, b)| !(-100.0..=100.0).contains(b))
        {
            return fail(
                "logit_bias",
                format!("the bias {bias} of token {token} is not between -100 and 100"),
            );
        }
        Ok(())
    }

    /// Whether any penalty needs the counts of tokens seen.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// The rows of one step that sample or score.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingBatch {
    /// The rows. `TokenSource::SampledBy` of the next step counts these.
    pub rows: Vec<SamplingRow>,
    /// `[masks, ceil(V / 32)]` allowed-token bits, 1 = allowed, low bit first.
    pub masks: Vec<u32>,
}

/// One row: which logits, and what to do with them.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingRow {
    /// Index into the step's logit rows. Several rows may share one (`n` from one prompt).
    pub logit_row: u32,
    /// What the row does.
    pub task: RowTask,
    /// Log-probabilities of the token and of this many others.
    pub num_logprobs: Option<u32>,
}

/// What a sampling row does.
#[derive(Clone, Debug, PartialEq)]
pub enum RowTask {
    /// Scores a token that is already known (prompt log-probabilities).
    Score {
        /// The token that follows.
        target: TokenId,
    },
    /// Draws a token.
    Draw(Draw),
}

/// How a token is drawn: filters, constraints, and the key of the random numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 changes nothing.
    pub repetition_penalty: f32,
    /// 0 changes nothing.
    pub presence_penalty: f32,
    /// 0 changes nothing.
    pub frequency_penalty: f32,
    /// Added to the logits.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Tokens that can't be drawn now (stop tokens before `min_tokens`).
    pub banned: Vec<TokenId>,
    /// If set, the only tokens that can be drawn.
    pub allowed: Option<Vec<TokenId>>,
    /// Index into `masks`.
    pub mask: Option<u32>,
    /// Key of the random numbers.
    pub seed: u64,
    /// Choice of the request, part of the key.
    pub choice: u32,
    /// Position of the drawn token in its sequence, part of the key.
    pub position: u32,
    /// Row of the penalty state, where the request has penalties. The drawn token is
    /// counted there by the sampling itself.
    pub state_row: Option<u32>,
}
