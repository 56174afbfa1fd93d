//! Ways out of the engine: one channel for many requests, or a stream of one.

use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use pagedllm_core::{FinishReason, TokenId};
use pagedllm_scheduler::{Event, RequestId};

use crate::EngineHandle;

/// Where the engine puts events; clones feed the same channel.
///
/// The engine never waits for the reader: the channel holds at most what the admitted requests
/// may generate.
#[derive(Clone, Debug)]
pub struct EventSender(pub(crate) Sender<Vec<Event>>);

/// Where events come out, a batch a step.
#[derive(Debug)]
pub struct EventReceiver(Receiver<Vec<Event>>);

/// Makes a channel for the events of any number of requests.
#[must_use]
pub fn event_channel() -> (EventSender, EventReceiver) {
    let (sender, receiver) = unbounded();
    (EventSender(sender), EventReceiver(receiver))
}

impl EventReceiver {
    /// Waits for the events of a step; `None` when every sender is gone.
    #[must_use]
    pub fn recv(&self) -> Option<Vec<Event>> {
        self.0.recv().ok()
    }
    /// As [`recv`](Self::recv), for at most `timeout`; an empty batch when nothing came.
    #[must_use]
    pub fn recv_timeout(&self, timeout: Duration) -> Option<Vec<Event>> {
        match self.0.recv_timeout(timeout) {
            Ok(events) => Some(events),
            Err(RecvTimeoutError::Timeout) => Some(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
    /// The channel itself, to wait for it together with others.
    #[must_use]
    pub const fn channel(&self) -> &Receiver<Vec<Event>> {
        &self.0
    }
}

/// Events of one request, for callers that need tokens only. Dropping it cancels the request.
#[derive(Debug)]
pub struct TokenStream {
    engine: EngineHandle,
    id: RequestId,
    events: EventReceiver,
    batch: std::vec::IntoIter<Event>,
    open_choices: u32,
}

/// One choice, complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Generated tokens, stop token included.
    pub tokens: Vec<TokenId>,
    /// Why it ended.
    pub reason: FinishReason,
    /// What went wrong, for [`FinishReason::Fault`].
    pub message: Option<String>,
}

impl TokenStream {
    pub(crate) fn new(
        engine: EngineHandle,
        id: RequestId,
        events: EventReceiver,
        choices: u32,
    ) -> Self {
        Self { engine, id, events, batch: Vec::new().into_iter(), open_choices: choices }
    }
    /// The request.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        self.id
    }
    /// Collects all choices, in order of their index.
    #[must_use]
    pub fn collect_choices(self) -> Vec<Choice> {
        let mut choices =
            vec![
                Choice { tokens: Vec::new(), reason: FinishReason::Cancelled, message: None };
                self.open_choices as usize
            ];
        for event in self {
            match event {
                Event::PromptLogprobs { .. } => {}
                Event::Token { choice, token, .. } => choices[choice as usize].tokens.push(token),
                Event::Finished { choice, reason, message, .. } => {
                    let choice = &mut choices[choice as usize];
                    (choice.reason, choice.message) = (reason, message);
                }
            }
        }
        choices
    }
}

impl Iterator for TokenStream {
    type Item = Event;

    /// Waits for the next event; `None` after the last choice has finished.
    fn next(&mut self) -> Option<Event> {
        if self.open_choices == 0 {
            return None;
        }
        loop {
            if let Some(event) = self.batch.next() {
                if matches!(event, Event::Finished { .. }) {
                    self.open_choices -= 1;
                }
                return Some(event);
            }
            self.batch = self.events.recv()?.into_iter();
        }
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if self.open_choices > 0 {
            self.engine.cancel(self.id);
        }
    }
}
