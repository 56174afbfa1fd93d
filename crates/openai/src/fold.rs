//! Events of the facade, sorted into what happens to each choice. A stream sends these deltas one
//! by one; a plain answer is their sum. So the two can't differ.

use pagedllm::{FinishReason, TextEvent, TokenId, TokenLogprobs, TokenText, Usage};

use crate::ApiError;
use crate::call::Item;

/// Something that happens to one choice, in the client's numbering.
#[derive(Debug)]
pub(crate) struct Delta {
    pub(crate) index: usize,
    pub(crate) part: Part,
}

/// What happens. Each choice has one `Open` first and one `Finished` last.
#[derive(Debug)]
pub(crate) enum Part {
    /// The answer begins.
    Open,
    /// More text, and the tokens since the last delta. The text is empty only where there is no
    /// tokenizer to make any.
    Text { text: String, tokens: Vec<TokenText> },
    /// The end, and the tokens whose text was not shown.
    Finished { reason: FinishReason, tokens: Vec<TokenText> },
}

/// State of one answer.
#[derive(Debug)]
pub(crate) struct Fold {
    choices_per_prompt: usize,
    pub(crate) prompts: Vec<PromptState>,
    choices: Vec<ChoiceState>,
    usage: Usage,
    /// Generated tokens seen so far.
    num_seen: usize,
    /// Whether tokens are passed on at once, since no text will ever come of them.
    is_textless: bool,
}

/// What is known of one prompt.
#[derive(Debug)]
pub(crate) struct PromptState {
    pub(crate) tokens: Vec<TokenId>,
    /// One entry a token, where asked for and computed.
    pub(crate) logprobs: Option<Vec<Option<TokenLogprobs>>>,
}

#[derive(Debug, Default)]
struct ChoiceState {
    is_open: bool,
    is_finished: bool,
    /// Tokens whose text is held back.
    pending: Vec<TokenText>,
}

impl Fold {
    pub(crate) fn new(
        prompts: Vec<Vec<TokenId>>,
        choices_per_prompt: usize,
        is_textless: bool,
    ) -> Self {
        let mut choices = Vec::new();
        choices.resize_with(prompts.len() * choices_per_prompt, ChoiceState::default);
        let prompts =
            prompts.into_iter().map(|tokens| PromptState { tokens, logprobs: None }).collect();
        let usage = Usage::default();
        Self { choices_per_prompt, prompts, choices, usage, num_seen: 0, is_textless }
    }

    pub(crate) fn num_choices(&self) -> usize {
        self.choices.len()
    }

    /// The prompt that a choice continues.
    pub(crate) fn prompt_of(&self, index: usize) -> usize {
        index / self.choices_per_prompt
    }

    /// Takes what happened; an error ends the whole answer.
    pub(crate) fn push(&mut self, item: Item) -> Result<Vec<Delta>, ApiError> {
        match item {
            Item::Ended(usage) => {
                self.usage.prompt_tokens += usage.prompt_tokens;
                self.usage.cached_tokens += usage.cached_tokens;
                self.usage.output_tokens += usage.output_tokens;
                Ok(Vec::new())
            }
            Item::Event(prompt, TextEvent::Prompt { logprobs }) => {
                self.prompts[prompt].logprobs = Some(logprobs);
                Ok(Vec::new())
            }
            Item::Event(prompt, TextEvent::Text { choice, text, tokens }) => {
                let (index, mut deltas) = self.open(prompt, choice);
                self.num_seen += tokens.len();
                let pending = &mut self.choices[index].pending;
                pending.extend(tokens);
                if !text.is_empty() || (self.is_textless && !pending.is_empty()) {
                    let tokens = std::mem::take(pending);
                    deltas.push(Delta { index, part: Part::Text { text, tokens } });
                }
                Ok(deltas)
            }
            Item::Event(prompt, TextEvent::Finished { choice, reason, fault, .. }) => {
                check_reason(reason, fault)?;
                let (index, mut deltas) = self.open(prompt, choice);
                let state = &mut self.choices[index];
                state.is_finished = true;
                let tokens = std::mem::take(&mut state.pending);
                deltas.push(Delta { index, part: Part::Finished { reason, tokens } });
                Ok(deltas)
            }
        }
    }

    fn open(&mut self, prompt: usize, choice: u32) -> (usize, Vec<Delta>) {
        let index = prompt * self.choices_per_prompt + choice as usize;
        let was_open = std::mem::replace(&mut self.choices[index].is_open, true);
        let open = (!was_open).then_some(Delta { index, part: Part::Open });
        (index, open.into_iter().collect())
    }

    /// Called when no more items come: every choice must have ended.
    pub(crate) fn check_end(&self) -> Result<(), ApiError> {
        match self.choices.iter().all(|choice| choice.is_finished) {
            true => Ok(()),
            false => Err(ApiError::internal("the engine ended the answer early")),
        }
    }

    /// Tokens of the whole answer, once it has ended.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// Tokens so far.
    pub(crate) fn usage_so_far(&self) -> Usage {
        let prompt_tokens = self.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        Usage {
            prompt_tokens,
            cached_tokens: self.usage.cached_tokens,
            output_tokens: self.num_seen,
        }
    }
}

/// The ends that are failures of the answer and not its natural end.
fn check_reason(reason: FinishReason, fault: Option<String>) -> Result<(), ApiError> {
    match reason {
        FinishReason::Length | FinishReason::StopToken(_) | FinishReason::StopString(_) => Ok(()),
        FinishReason::Cancelled => Err(ApiError::new(
            503,
            "service_unavailable_error",
            "the answer was cancelled before its end",
        )
        .with_code("cancelled")),
        FinishReason::Deadline => {
            let message = "the time limit of the request passed before the answer ended";
            Err(ApiError::new(504, "timeout_error", message).with_code("deadline_exceeded"))
        }
        FinishReason::Fault => {
            Err(ApiError::internal(fault.unwrap_or_else(|| "the engine failed".into())))
        }
    }
}
