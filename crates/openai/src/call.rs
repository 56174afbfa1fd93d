//! A checked request body, on its way to the engine.

use futures_util::stream::{SelectAll, Stream};
use pagedllm::{Llm, TextEvent, TextRequest, TextStream, TokenId, Usage};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::ApiError;
use crate::sampling::{Common, Streaming, Truncation};

/// A body that was read and checked: requests for the facade and the shape of the answer.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) requests: Vec<TextRequest>,
    pub(crate) shape: Shape,
    pub(crate) streaming: Streaming,
    /// Whether the client itself asked for log-probabilities of the prompt.
    pub(crate) shows_prompt_logprobs: bool,
    pub(crate) return_token_ids: bool,
    pub(crate) tokens_as_ids: bool,
    pub(crate) cache_salt: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) ignored_params: Vec<String>,
}

/// What the endpoint makes of the events.
#[derive(Debug)]
pub(crate) enum Shape {
    Completion {
        /// Text of each prompt, where it is to be repeated.
        echoed: Option<Vec<String>>,
        logprobs: Option<u32>,
    },
    Chat {
        /// Who answers.
        role: String,
    },
}

impl Call {
    pub(crate) fn new(
        common: Common,
        requests: Vec<TextRequest>,
        shape: Shape,
        shows_prompt_logprobs: bool,
        ignored_params: Vec<String>,
    ) -> Self {
        Self {
            requests,
            shape,
            streaming: common.streaming,
            shows_prompt_logprobs,
            return_token_ids: common.return_token_ids,
            tokens_as_ids: common.tokens_as_ids,
            cache_salt: common.cache_salt,
            request_id: common.request_id,
            ignored_params,
        }
    }

    /// Name of the field that holds the prompt.
    fn prompt_field(&self) -> &'static str {
        match self.shape {
            Shape::Completion { .. } => "prompt",
            Shape::Chat { .. } => "messages",
        }
    }

    /// Submits all requests, or none: those before a refused one are cancelled.
    pub(crate) fn start(&mut self, llm: &Llm, salt: &[u8]) -> Result<Merged, ApiError> {
        let field = self.prompt_field();
        let mut prompts = Vec::with_capacity(self.requests.len());
        let mut streams = SelectAll::new();
        for (prompt, mut request) in self.requests.drain(..).enumerate() {
            request.cache_salt = salt.to_vec();
            let stream =
                llm.generate(request).map_err(|error| ApiError::from_facade(error, field))?;
            prompts.push(stream.prompt_tokens().to_vec());
            streams.push(Tagged { prompt, stream: Some(stream) });
        }
        Ok(Merged { prompts, streams })
    }
}

/// The part of a long prompt that the request wants to keep.
pub(crate) fn cut(
    mut tokens: Vec<TokenId>,
    truncation: Option<Truncation>,
    max_model_len: usize,
    max_tokens: u32,
) -> Vec<TokenId> {
    let Some(truncation) = truncation else { return tokens };
    let fits = max_model_len.saturating_sub(max_tokens as usize);
    let length = truncation.length.unwrap_or(fits);
    if tokens.len() > length {
        if truncation.keeps_the_start {
            tokens.truncate(length);
        } else {
            tokens.drain(..tokens.len() - length);
        }
    }
    tokens
}

/// The streams of all prompts of a body, as they come. Dropping it cancels them.
pub(crate) struct Merged {
    /// Tokens of each prompt.
    pub(crate) prompts: Vec<Vec<TokenId>>,
    streams: SelectAll<Tagged>,
}

/// Something that happened to one prompt of a body.
pub(crate) enum Item {
    Event(usize, TextEvent),
    Ended(Usage),
}

struct Tagged {
    prompt: usize,
    stream: Option<TextStream>,
}

impl Stream for Tagged {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let prompt = self.prompt;
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        match stream.poll_next(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(event)) => Poll::Ready(Some(Item::Event(prompt, event))),
            Poll::Ready(None) => {
                let usage = stream.usage();
                self.stream = None;
                Poll::Ready(Some(Item::Ended(usage)))
            }
        }
    }
}

impl Merged {
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        Pin::new(&mut self.streams).poll_next(cx)
    }
}

impl std::fmt::Debug for Merged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merged").field("prompts", &self.prompts.len()).finish_non_exhaustive()
    }
}
