//! The answers to one request, pulled by the caller.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pagedllm_core::{FinishReason, TokenId, TokenLogprobs};
use pagedllm_engine::{EngineHandle, RequestId};

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenText {
    /// The token.
    pub token: TokenId,
    /// Log-probabilities, where asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Something that happened to one choice of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum TextEvent {
    /// The prompt was computed (only where prompt log-probabilities were asked for): one entry a
    /// prompt token, `None` for the first.
    Prompt {
        /// Log-probabilities of each prompt token.
        logprobs: Vec<Option<TokenLogprobs>>,
    },
    /// New tokens, and the text that became certain. The text may be empty (half a character, or
    /// the start of a stop string is held back) and never ends inside a character.
    Text {
        /// `0 .. n`.
        choice: u32,
        /// Text to append.
        text: String,
        /// Tokens of this event; a token comes once, whatever happens to its text.
        tokens: Vec<TokenText>,
    },
    /// The choice ended; nothing of it follows.
    Finished {
        /// `0 .. n`.
        choice: u32,
        /// Why.
        reason: FinishReason,
        /// What failed, in words, for [`FinishReason::Fault`].
        fault: Option<String>,
        /// What it took.
        usage: ChoiceUsage,
    },
}

/// Tokens of one choice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChoiceUsage {
    /// Tokens generated, stop token included.
    pub output_tokens: usize,
    /// Sum of the log-probabilities of the generated tokens, where they were computed.
    pub cumulative_logprob: Option<f64>,
}

/// Tokens of a whole request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, found in the prefix cache; known when the first choice has ended.
    pub cached_tokens: usize,
    /// Tokens generated so far over all choices, those that `best_of` drops included.
    pub output_tokens: usize,
}

/// Result of waiting for an event.
#[derive(Clone, Debug, PartialEq)]
pub enum NextEvent {
    /// An event.
    Event(TextEvent),
    /// Nothing happened in the time given.
    TimedOut,
    /// All choices have finished and everything was read.
    End,
}

/// The queue between the text thread and one reader. It holds at most what the request may
/// generate, so the text thread never waits.
#[derive(Debug, Default)]
pub(crate) struct StreamQueue {
    state: Mutex<QueueState>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    events: VecDeque<TextEvent>,
    usage: Usage,
    ended: bool,
    waker: Option<Waker>,
}

impl StreamQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that no reader has taken, and whether it is the end.
    #[cfg(test)]
    pub(crate) fn take_all(&self) -> (Vec<TextEvent>, bool) {
        let mut state = self.lock();
        (state.events.drain(..).collect(), state.ended)
    }

    /// Adds events and wakes the reader.
    pub(crate) fn push(
        &self,
        events: impl IntoIterator<Item = TextEvent>,
        usage: Usage,
        ended: bool,
    ) {
        let mut state = self.lock();
        state.events.extend(events);
        state.usage = usage;
        state.ended |= ended;
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Events of one request. Dropping it cancels what has not finished.
#[derive(Debug)]
pub struct TextStream {
    queue: Arc<StreamQueue>,
    engine: EngineHandle,
    id: RequestId,
    prompt: Vec<TokenId>,
}

impl TextStream {
    pub(crate) fn new(
        queue: Arc<StreamQueue>,
        engine: EngineHandle,
        id: RequestId,
        prompt: Vec<TokenId>,
    ) -> Self {
        Self { queue, engine, id, prompt }
    }

    /// Tokens of the prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> &[TokenId] {
        &self.prompt
    }

    /// Tokens so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage { prompt_tokens: self.prompt.len(), ..self.queue.lock().usage }
    }

    /// Waits at most `timeout` for the next event.
    pub fn next_timeout(&mut self, timeout: Duration) -> NextEvent {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.queue.lock();
        loop {
            if let Some(event) = state.events.pop_front() {
                return NextEvent::Event(event);
            }
            if state.ended {
                return NextEvent::End;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return NextEvent::TimedOut;
            }
            state = match left {
                Some(left) => {
                    self.queue
                        .ready
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self.queue.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Polls for the next event; `None` when all choices have finished.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<TextEvent>> {
        let mut state = self.queue.lock();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the request; its choices finish as cancelled.
    pub fn cancel(&self) {
        self.engine.cancel(self.id);
    }
}

impl Iterator for TextStream {
    type Item = TextEvent;

    /// Waits for the next event; `None` when all choices have finished.
    fn next(&mut self) -> Option<TextEvent> {
        match self.next_timeout(Duration::MAX) {
            NextEvent::Event(event) => Some(event),
            NextEvent::TimedOut | NextEvent::End => None,
        }
    }
}

impl Drop for TextStream {
    fn drop(&mut self) {
        if !self.queue.lock().ended {
            self.engine.cancel(self.id);
        }
    }
}
