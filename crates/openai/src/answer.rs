//! Answers, pulled by whoever sends them: with a waker, or by waiting.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::ApiError;
use crate::call::Merged;
use crate::fold::Fold;
use crate::format::{Format, Sum};
use crate::sampling::Streaming;
use crate::wire::UsageBody;

/// What a stream ends with after a good answer.
pub const DONE: &str = "[DONE]";

/// The answer to one body.
#[derive(Debug)]
pub struct Answer {
    /// Id of the answer, unless it has none.
    pub id: Option<String>,
    /// Fields of the request that had no effect.
    pub ignored_params: Vec<String>,
    /// The answer itself.
    pub body: AnswerBody,
}

/// How an answer comes.
#[derive(Debug)]
pub enum AnswerBody {
    /// It is there.
    Ready(String),
    /// All at once, when generation has ended. Dropping it cancels.
    Plain(Box<PlainAnswer>),
    /// Piece by piece. Dropping it cancels.
    Stream(Box<StreamAnswer>),
}

/// An answer that is being generated and is sent when complete.
pub struct PlainAnswer {
    merged: Merged,
    fold: Fold,
    sums: Vec<Sum>,
    format: Format,
}

/// An answer that is sent as it is generated: payloads of server-sent events.
pub struct StreamAnswer {
    /// `None` after the last item or an error.
    merged: Option<Merged>,
    fold: Fold,
    sums: Vec<Sum>,
    format: Format,
    streaming: Streaming,
    payloads: VecDeque<String>,
}

impl PlainAnswer {
    pub(crate) fn new(merged: Merged, fold: Fold, format: Format) -> Self {
        let sums = sums(&fold);
        Self { merged, fold, sums, format }
    }

    /// The answer as JSON once it is complete. Not to be called again after it was ready.
    ///
    /// # Errors
    /// The answer failed on the way.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<String, ApiError>> {
        loop {
            match self.merged.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    let answer = self.fold.check_end();
                    return Poll::Ready(
                        answer.map(|()| self.format.whole(&self.fold, &mut self.sums)),
                    );
                }
                Poll::Ready(Some(item)) => match self.fold.push(item) {
                    Ok(deltas) => {
                        for delta in deltas {
                            self.sums[delta.index].add(delta.part);
                        }
                    }
                    Err(error) => return Poll::Ready(Err(self.format.shown(error))),
                },
            }
        }
    }

    /// As [`poll`](Self::poll), waiting for at most `timeout`; `None` when that passed.
    ///
    /// # Errors
    /// The answer failed on the way.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<String>, ApiError> {
        wait(timeout, |cx| self.poll(cx)).transpose()
    }
}

impl StreamAnswer {
    pub(crate) fn new(merged: Merged, fold: Fold, format: Format, streaming: Streaming) -> Self {
        let (sums, merged) = (sums(&fold), Some(merged));
        Self { merged, fold, sums, format, streaming, payloads: VecDeque::new() }
    }

    /// The next payload, one line of JSON or [`DONE`]; `None` after the last. A failure is a
    /// payload with an `error` object, the last one then.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<String>> {
        loop {
            if let Some(payload) = self.payloads.pop_front() {
                return Poll::Ready(Some(payload));
            }
            let Some(merged) = &mut self.merged else { return Poll::Ready(None) };
            let item = match merged.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(item) => item,
            };
            if let Err(error) = self.push(item) {
                self.merged = None;
                self.payloads.push_back(self.format.shown(error).body().to_string());
            }
        }
    }

    /// As [`poll_next`](Self::poll_next), waiting for at most `timeout`.
    pub fn next_timeout(&mut self, timeout: Duration) -> NextPayload {
        match wait(timeout, |cx| self.poll_next(cx)) {
            None => NextPayload::TimedOut,
            Some(None) => NextPayload::End,
            Some(Some(payload)) => NextPayload::Payload(payload),
        }
    }

    fn push(&mut self, item: Option<crate::call::Item>) -> Result<(), ApiError> {
        let Some(item) = item else {
            self.merged = None;
            self.fold.check_end()?;
            if self.streaming.include_usage {
                self.payloads.push_back(self.format.usage_chunk(&self.fold));
            }
            self.payloads.push_back(DONE.to_owned());
            return Ok(());
        };
        for delta in self.fold.push(item)? {
            let usage = self.running_usage();
            let sum = &mut self.sums[delta.index];
            self.payloads.extend(self.format.chunk(delta, &self.fold, sum, usage));
        }
        Ok(())
    }

    /// What chunks before the last say about usage.
    fn running_usage(&self) -> Option<Option<UsageBody>> {
        match self.streaming {
            Streaming { continuous_usage: true, .. } => Some(Some(self.fold.usage_so_far().into())),
            Streaming { include_usage: true, .. } => Some(None),
            _ => None,
        }
    }
}

/// Result of waiting for a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextPayload {
    /// A payload.
    Payload(String),
    /// Nothing came in the time given.
    TimedOut,
    /// The stream has ended.
    End,
}

fn sums(fold: &Fold) -> Vec<Sum> {
    let mut sums = Vec::new();
    sums.resize_with(fold.num_choices(), Sum::default);
    sums
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls on this thread until ready or late.
fn wait<T>(timeout: Duration, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let end = Instant::now().checked_add(timeout);
    loop {
        if let Poll::Ready(value) = poll(&mut context) {
            return Some(value);
        }
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            None => std::thread::park(),
            Some(Duration::ZERO) => return None,
            Some(left) => std::thread::park_timeout(left),
        }
    }
}

impl std::fmt::Debug for PlainAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlainAnswer").field("id", &self.format.id).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for StreamAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamAnswer").field("id", &self.format.id).finish_non_exhaustive()
    }
}
