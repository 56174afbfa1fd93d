//! From deltas to the objects of OpenAI's API.

use pagedllm::{FinishReason, TokenText};
use serde_json::Value;

use crate::ApiError;
use crate::call::Shape;
use crate::fold::{Delta, Fold, Part};
use crate::logprobs::Names;
use crate::wire::{
    ChatChoice, ChatChunkChoice, CompletionChoice, CompletionLogprobs, Envelope, Message,
    MessageDelta, UsageBody,
};

/// Tells clients which program answered.
const FINGERPRINT: &str = concat!("pagedllm-", env!("CARGO_PKG_VERSION"));

/// Everything that is the same in all objects of one answer.
pub(crate) struct Format {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) shape: Shape,
    pub(crate) names: Names,
    pub(crate) return_token_ids: bool,
    pub(crate) shows_prompt_logprobs: bool,
    /// Stop strings of the request, for `stop_reason`.
    pub(crate) stop: Vec<String>,
    /// Tokens whose end is the model's own and has no `stop_reason`.
    pub(crate) silent_stops: Vec<u32>,
}

/// What was sent of one choice, or will be.
#[derive(Default)]
pub(crate) struct Sum {
    text: String,
    tokens: Vec<TokenText>,
    finish: Option<FinishReason>,
    /// Characters before the next token, for `text_offset`.
    offset: usize,
}

impl Sum {
    /// Adds a delta to the plain answer.
    pub(crate) fn add(&mut self, part: Part) {
        match part {
            Part::Open => {}
            Part::Text { text, tokens } => {
                self.text.push_str(&text);
                self.tokens.extend(tokens);
            }
            Part::Finished { reason, tokens } => {
                self.tokens.extend(tokens);
                self.finish = Some(reason);
            }
        }
    }
}

impl Format {
    /// The chunk of a delta as JSON; `None` where the delta has nothing to say.
    pub(crate) fn chunk(
        &self,
        delta: Delta,
        fold: &Fold,
        sum: &mut Sum,
        usage: Option<Option<UsageBody>>,
    ) -> Option<String> {
        match &self.shape {
            Shape::Chat { role } => self.chat_chunk(role, delta, fold, usage),
            Shape::Completion { .. } => self.completion_chunk(delta, fold, sum, usage),
        }
    }

    fn chat_chunk(
        &self,
        role: &str,
        delta: Delta,
        fold: &Fold,
        usage: Option<Option<UsageBody>>,
    ) -> Option<String> {
        let mut envelope = self.envelope("chat.completion.chunk", usage);
        let is_first = matches!(delta.part, Part::Open);
        if is_first && self.return_token_ids {
            envelope.prompt_token_ids = Some(&fold.prompts[fold.prompt_of(delta.index)].tokens);
        }
        let (text, tokens, reason) = part(&delta.part);
        let message = match text {
            _ if is_first => MessageDelta { role: Some(role), content: Some("") },
            None => MessageDelta::default(),
            text => MessageDelta { role: None, content: text },
        };
        envelope.choices.push(ChatChunkChoice {
            index: delta.index,
            delta: message,
            logprobs: self.names.chat(tokens),
            finish_reason: reason.map(finish_reason),
            stop_reason: reason.and_then(|reason| self.stop_reason(reason)),
            token_ids: (self.return_token_ids && !is_first).then(|| ids(tokens)),
        });
        Some(json(&envelope))
    }

    fn completion_chunk(
        &self,
        delta: Delta,
        fold: &Fold,
        sum: &mut Sum,
        usage: Option<Option<UsageBody>>,
    ) -> Option<String> {
        let prompt = fold.prompt_of(delta.index);
        let is_first = matches!(delta.part, Part::Open);
        let echoed = is_first.then(|| self.echoed(prompt)).flatten();
        if is_first && echoed.is_none() && !self.return_token_ids {
            return None;
        }
        let (text, tokens, reason) = part(&delta.part);
        let mut envelope = self.envelope("text_completion", usage);
        envelope.choices.push(CompletionChoice {
            index: delta.index,
            text: echoed.or(text).unwrap_or_default(),
            logprobs: self.completion_logprobs(is_first.then_some((fold, prompt)), tokens, sum),
            finish_reason: reason.map(finish_reason),
            stop_reason: reason.and_then(|reason| self.stop_reason(reason)),
            prompt_logprobs: None,
            token_ids: (self.return_token_ids && !is_first).then(|| ids(tokens)),
            prompt_token_ids: (self.return_token_ids && is_first)
                .then(|| &fold.prompts[prompt].tokens[..]),
        });
        Some(json(&envelope))
    }

    /// The error as a client may see it: what a failed device said stays in the log.
    pub(crate) fn shown(&self, error: ApiError) -> ApiError {
        match self.names.llm.health() {
            Err(failed @ pagedllm::Error::Device(_)) => ApiError::from_facade(failed, "prompt"),
            _ => error,
        }
    }

    /// The chunk that ends a stream with usage.
    pub(crate) fn usage_chunk(&self, fold: &Fold) -> String {
        let object = match self.shape {
            Shape::Chat { .. } => "chat.completion.chunk",
            Shape::Completion { .. } => "text_completion",
        };
        json(&self.envelope::<()>(object, Some(Some(fold.usage().into()))))
    }

    /// The plain answer as JSON.
    pub(crate) fn whole(&self, fold: &Fold, sums: &mut [Sum]) -> String {
        let usage = Some(Some(fold.usage().into()));
        match &self.shape {
            Shape::Chat { role } => {
                let mut envelope = self.envelope("chat.completion", usage);
                let prompt = &fold.prompts[0];
                envelope.prompt_logprobs = self.prompt_logprobs(fold, 0);
                envelope.prompt_token_ids = self.return_token_ids.then_some(&prompt.tokens[..]);
                let choices = sums.iter().enumerate();
                envelope
                    .choices
                    .extend(choices.map(|(index, sum)| self.chat_choice(role, index, sum)));
                json(&envelope)
            }
            Shape::Completion { .. } => {
                let mut texts = Vec::with_capacity(sums.len());
                for (index, sum) in sums.iter().enumerate() {
                    let prompt = self.echoed(fold.prompt_of(index)).unwrap_or_default();
                    texts.push(format!("{prompt}{}", sum.text));
                }
                let mut envelope = self.envelope("text_completion", usage);
                for (index, (sum, text)) in sums.iter_mut().zip(&texts).enumerate() {
                    envelope.choices.push(self.completion_choice(index, fold, sum, text));
                }
                json(&envelope)
            }
        }
    }

    fn chat_choice<'a>(&self, role: &'a str, index: usize, sum: &'a Sum) -> ChatChoice<'a> {
        ChatChoice {
            index,
            message: Message { role, content: &sum.text, refusal: None },
            logprobs: self.names.chat(&sum.tokens),
            finish_reason: sum.finish.map(finish_reason),
            stop_reason: sum.finish.and_then(|reason| self.stop_reason(reason)),
            token_ids: self.return_token_ids.then(|| ids(&sum.tokens)),
        }
    }

    fn completion_choice<'a>(
        &self,
        index: usize,
        fold: &'a Fold,
        sum: &mut Sum,
        text: &'a str,
    ) -> CompletionChoice<'a> {
        let prompt = fold.prompt_of(index);
        let tokens = std::mem::take(&mut sum.tokens);
        CompletionChoice {
            index,
            text,
            logprobs: self.completion_logprobs(Some((fold, prompt)), &tokens, sum),
            finish_reason: sum.finish.map(finish_reason),
            stop_reason: sum.finish.and_then(|reason| self.stop_reason(reason)),
            prompt_logprobs: self.prompt_logprobs(fold, prompt),
            token_ids: self.return_token_ids.then(|| ids(&tokens)),
            prompt_token_ids: self.return_token_ids.then_some(&fold.prompts[prompt].tokens[..]),
        }
    }

    /// Log-probabilities of an echoed prompt (where it is due) and of `tokens` after it.
    fn completion_logprobs(
        &self,
        prompt: Option<(&Fold, usize)>,
        tokens: &[TokenText],
        sum: &mut Sum,
    ) -> Option<CompletionLogprobs> {
        let Shape::Completion { echoed, logprobs: Some(_) } = &self.shape else { return None };
        let mut lists = CompletionLogprobs::default();
        if let (Some((fold, prompt)), true) = (prompt, echoed.is_some()) {
            let prompt = &fold.prompts[prompt];
            let logprobs = prompt.logprobs.as_deref().unwrap_or_default();
            for (at, &token) in prompt.tokens.iter().enumerate() {
                let logprobs = logprobs.get(at).and_then(Option::as_ref);
                self.names.add_completion(&mut lists, &mut sum.offset, token, logprobs);
            }
        }
        for token in tokens {
            let logprobs = token.logprobs.as_ref();
            self.names.add_completion(&mut lists, &mut sum.offset, token.token, logprobs);
        }
        (!lists.tokens.is_empty()).then_some(lists)
    }

    fn prompt_logprobs(
        &self,
        fold: &Fold,
        prompt: usize,
    ) -> Option<Vec<Option<crate::wire::PromptLogprobs>>> {
        let logprobs = fold.prompts[prompt].logprobs.as_ref();
        logprobs.filter(|_| self.shows_prompt_logprobs).map(|logprobs| self.names.prompt(logprobs))
    }

    /// The prompt's text, where it is to be repeated.
    fn echoed(&self, prompt: usize) -> Option<&str> {
        match &self.shape {
            Shape::Completion { echoed: Some(echoed), .. } => Some(&echoed[prompt]),
            _ => None,
        }
    }

    fn envelope<C>(
        &self,
        object: &'static str,
        usage: Option<Option<UsageBody>>,
    ) -> Envelope<'_, C> {
        Envelope {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices: Vec::new(),
            usage,
            system_fingerprint: FINGERPRINT,
            prompt_logprobs: None,
            prompt_token_ids: None,
        }
    }

    /// What ended the choice: the stop string, or a stop token that the request named.
    fn stop_reason(&self, reason: FinishReason) -> Option<Value> {
        match reason {
            FinishReason::StopString(index) => self.stop.get(index).map(|stop| stop.clone().into()),
            FinishReason::StopToken(token) if !self.silent_stops.contains(&token) => {
                Some(token.into())
            }
            _ => None,
        }
    }
}

fn part(part: &Part) -> (Option<&str>, &[TokenText], Option<FinishReason>) {
    match part {
        Part::Open => (None, &[], None),
        Part::Text { text, tokens } => (Some(text), tokens, None),
        Part::Finished { reason, tokens } => (None, tokens, Some(*reason)),
    }
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::StopToken(_) | FinishReason::StopString(_) => "stop",
        // These end the whole answer with an error before a choice could show them.
        FinishReason::Cancelled | FinishReason::Deadline | FinishReason::Fault => "error",
    }
}

fn ids(tokens: &[TokenText]) -> Vec<u32> {
    tokens.iter().map(|token| token.token).collect()
}

/// Serialization of these types has no way to fail: string keys, finite numbers.
fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("answers are plain data")
}
