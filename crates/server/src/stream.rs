//! Bodies of answers: whole, or server-sent events as they come.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use pagedllm_openai::{StreamAnswer, sse};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Most events that go into one write.
const MAX_BATCH: usize = 64;

/// What is sent after the head of an answer. Dropping it cancels the request.
pub(crate) enum AnswerBytes {
    Whole(Bytes),
    Events(Box<Events>),
}

/// A stream of events.
pub(crate) struct Events {
    answer: StreamAnswer,
    keep_alive: Option<Interval>,
}

impl Events {
    /// `keep_alive` zero sends no comments.
    pub(crate) fn new(answer: StreamAnswer, keep_alive: Duration) -> Self {
        let keep_alive = (!keep_alive.is_zero()).then(|| {
            let mut interval = interval(keep_alive);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval.reset();
            interval
        });
        Self { answer, keep_alive }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut batch = String::new();
        for _ in 0..MAX_BATCH {
            match self.answer.poll_next(cx) {
                Poll::Ready(Some(payload)) => batch.push_str(&sse::frame(&payload)),
                Poll::Ready(None) if batch.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        if let Some(keep_alive) = &mut self.keep_alive {
            if !batch.is_empty() {
                keep_alive.reset();
            } else if keep_alive.poll_tick(cx).is_ready() {
                batch.push_str(": keep-alive\n\n");
            }
        }
        if batch.is_empty() { Poll::Pending } else { Poll::Ready(Some(batch.into())) }
    }
}

impl Body for AnswerBytes {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Events(events) => events.poll(cx).map(|bytes| Some(Ok(Frame::data(bytes?)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Events(_) => SizeHint::default(),
        }
    }
}
