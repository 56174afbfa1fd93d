//! Streams: the events of one request, pulled.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pagedllm::{TextStream, Usage};
use pagedllm_openai::{AnswerBody, PlainAnswer, StreamAnswer};

use crate::caller::{Caller, invalid};
use crate::error::{Error, Failure};
use crate::event::{Draft, Event};
use crate::hand_over;
use crate::handle::{self, Opaque};
use crate::panic::guard;
use crate::queue::Ready;
use crate::status::{PAGEDLLM_END, PAGEDLLM_OK, Status};
use crate::wake_fd::WakeFd;

/// A timeout that never passes.
pub const PAGEDLLM_FOREVER: u32 = u32::MAX;

/// The answer to one request.
pub struct Stream {
    _opaque: [u8; 0],
}

impl Opaque for Stream {
    type Object = StreamObject;
    const MAGIC: u32 = u32::from_le_bytes(*b"pStr");
}

/// What a stream's handle holds.
pub(crate) struct StreamObject(Arc<hand_over::Feed<Tagged, WakeFd>>);

/// A source whose events carry the tag of its request.
pub(crate) struct Tagged {
    tag: u64,
    source: Source,
}

impl hand_over::Source for Tagged {
    type Event = *const Event;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<*const Event>> {
        self.source.poll(cx).map(|draft| draft.map(|draft| draft.into_record(self.tag)))
    }

    fn end(&self) -> *const Event {
        Draft::end(self.source.usage()).into_record(self.tag)
    }
}

/// Where events come from.
pub(crate) enum Source {
    Text(TextStream),
    Json(Box<StreamAnswer>),
    Whole(Box<PlainAnswer>),
    Ready(String),
    Ended(Usage),
}

impl From<AnswerBody> for Source {
    fn from(body: AnswerBody) -> Self {
        match body {
            AnswerBody::Ready(json) => Self::Ready(json),
            AnswerBody::Plain(answer) => Self::Whole(answer),
            AnswerBody::Stream(answer) => Self::Json(answer),
        }
    }
}

impl Source {
    /// The next event, or `None` after the last.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Draft>> {
        let (draft, then) = match self {
            Self::Text(stream) => match stream.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(event)) => {
                    let draft = Draft::of(event, stream.usage(), stream.prompt_tokens());
                    return Poll::Ready(Some(draft));
                }
                Poll::Ready(None) => (None, Self::Ended(stream.usage())),
            },
            Self::Json(answer) => match answer.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(json)) => return Poll::Ready(Some(Draft::json(json))),
                Poll::Ready(None) => (None, Self::Ended(Usage::default())),
            },
            Self::Whole(answer) => match answer.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(json)) => (Some(Draft::json(json)), Self::Ended(Usage::default())),
                Poll::Ready(Err(error)) => {
                    let body = error.body().to_string();
                    let draft = Draft::failed(body, &Failure::from(error));
                    (Some(draft), Self::Ended(Usage::default()))
                }
            },
            Self::Ready(json) => {
                (Some(Draft::json(std::mem::take(json))), Self::Ended(Usage::default()))
            }
            Self::Ended(_) => return Poll::Ready(None),
        };
        *self = then;
        Poll::Ready(draft)
    }

    /// Requests of the facade finish as cancelled; answers just end.
    fn cancel(&mut self) {
        match self {
            Self::Text(stream) => stream.cancel(),
            Self::Ended(_) => {}
            _ => *self = Self::Ended(Usage::default()),
        }
    }

    fn usage(&self) -> Usage {
        match self {
            Self::Text(stream) => stream.usage(),
            Self::Ended(usage) => *usage,
            _ => Usage::default(),
        }
    }
}

/// When a timeout passes; `None` is never.
pub(crate) fn deadline(timeout_ms: u32) -> Option<Instant> {
    if timeout_ms == PAGEDLLM_FOREVER {
        return None;
    }
    Instant::now().checked_add(Duration::from_millis(timeout_ms.into()))
}

/// Makes a stream; with a queue its events go there.
pub(crate) fn open(source: Source, tag: u64, queue: Option<Arc<Ready>>) -> *mut Stream {
    handle::new::<Stream>(StreamObject(hand_over::Feed::new(Tagged { tag, source }, queue)))
}

/// Waits for the next event, for timeout_ms at most (0 does not wait, PAGEDLLM_FOREVER waits
/// without limit). The event is freed with pagedllm_event_free. Returns PAGEDLLM_OK with an
/// event, PAGEDLLM_TIMED_OUT, or PAGEDLLM_END after the last. Several threads may wait; each
/// event goes to one of them. Not for streams of a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_stream_next(
    stream: *const Stream,
    timeout_ms: u32,
    out: *mut *const Event,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let stream = caller.enter(stream, "stream")?;
        let out = caller.out(out, "out")?;
        if stream.0.is_on_a_list() {
            return Err(invalid("stream", "belongs to a completion queue; poll that"));
        }
        Ok(match stream.0.next(deadline(timeout_ms)) {
            Err(nothing) => nothing.into(),
            Ok(None) => PAGEDLLM_END,
            Ok(Some(event)) => {
                out.set(event);
                PAGEDLLM_OK
            }
        })
    })
}

/// Ends the request soon. Its choices finish with PAGEDLLM_FINISH_CANCELLED; an OpenAI answer
/// just ends. Events that came before can still be read. Cancelling twice, or after the end, does
/// nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_stream_cancel(
    stream: *const Stream,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let stream = caller.enter(stream, "stream")?;
        stream.0.change(|tagged| tagged.source.cancel());
        Ok(PAGEDLLM_OK)
    })
}

/// Frees a stream and cancels what has not ended. NULL is fine. PAGEDLLM_BUSY while another
/// thread waits in pagedllm_stream_next: cancel first, and free when that has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_stream_free(stream: *mut Stream) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(std::ptr::null_mut()) }, |_| handle::free(stream, "stream"))
}
