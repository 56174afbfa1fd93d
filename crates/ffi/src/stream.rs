//! Streams: the events of one request, pulled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pagedllm::{TextStream, Usage};
use pagedllm_openai::{AnswerBody, PlainAnswer, StreamAnswer};

use crate::caller::{Caller, invalid};
use crate::error::{Error, Failure};
use crate::event::{Draft, Event};
use crate::handle::{self, Opaque};
use crate::panic::guard;
use crate::queue::Ready;
use crate::status::{PAGEDLLM_END, PAGEDLLM_OK, PAGEDLLM_TIMED_OUT, Status};

/// A timeout that never passes.
pub const PAGEDLLM_FOREVER: u32 = u32::MAX;

/// The answer to one request.
pub struct Stream {
    _opaque: [u8; 0],
}

impl Opaque for Stream {
    type Object = Arc<Shared>;
    const MAGIC: u32 = u32::from_le_bytes(*b"pStr");
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

/// A stream, shared by its handle and the poll of its queue.
pub struct Shared {
    tag: u64,
    source: Mutex<Source>,
    signal: Arc<Signal>,
    /// Whether the queue was told that the stream has ended.
    end_was_told: AtomicBool,
}

/// Tells readers that there may be something. It does not hold the stream, since the stream's
/// source holds it.
struct Signal {
    wakes: Mutex<u64>,
    changed: Condvar,
    queue: Option<Link>,
}

struct Link {
    ready: Arc<Ready>,
    stream: Weak<Shared>,
    is_listed: AtomicBool,
}

impl Link {
    /// Lists the stream, unless it is.
    fn list(&self) {
        if !self.is_listed.swap(true, Ordering::AcqRel) {
            self.ready.push(Weak::clone(&self.stream));
        }
    }
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a wake after the `seen`-th; false when the time is up.
    fn wait(&self, seen: u64, until: Option<Instant>) -> bool {
        let mut wakes = self.lock();
        while *wakes == seen {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            wakes = match left {
                None => self.changed.wait(wakes).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return false,
                Some(left) => {
                    let waited = self.changed.wait_timeout(wakes, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.lock() += 1;
        self.changed.notify_all();
        if let Some(link) = &self.queue {
            link.list();
        }
    }
}

impl Shared {
    fn new(source: Source, tag: u64, queue: Option<Arc<Ready>>) -> Arc<Self> {
        let shared = Arc::new_cyclic(|stream| Self {
            tag,
            source: Mutex::new(source),
            signal: Arc::new(Signal {
                wakes: Mutex::new(0),
                changed: Condvar::new(),
                queue: queue.map(|ready| Link {
                    ready,
                    stream: Weak::clone(stream),
                    is_listed: AtomicBool::new(false),
                }),
            }),
            end_was_told: AtomicBool::new(false),
        });
        // The queue's first poll of the stream leaves the waker behind.
        if let Some(link) = &shared.signal.queue {
            link.list();
        }
        shared
    }

    fn source(&self) -> MutexGuard<'_, Source> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self) -> Poll<Option<Draft>> {
        let waker = Waker::from(Arc::clone(&self.signal));
        self.source().poll(&mut Context::from_waker(&waker))
    }

    /// Waits for the next event; `None` at the end.
    fn next(&self, until: Option<Instant>) -> Result<Option<Draft>, Status> {
        loop {
            let seen = *self.signal.lock();
            if let Poll::Ready(event) = self.poll() {
                return Ok(event);
            }
            if !self.signal.wait(seen, until) {
                return Err(PAGEDLLM_TIMED_OUT);
            }
        }
    }

    /// Moves events into the answer of a poll of the queue, up to `capacity` in all.
    pub(crate) fn collect(&self, events: &mut Vec<*const Event>, capacity: usize) {
        let Some(link) = &self.signal.queue else { return };
        // From here on a wake lists the stream again.
        link.is_listed.store(false, Ordering::Release);
        loop {
            if events.len() >= capacity {
                return link.list();
            }
            match self.poll() {
                Poll::Pending => return,
                Poll::Ready(Some(draft)) => events.push(draft.into_record(self.tag)),
                Poll::Ready(None) => {
                    if !self.end_was_told.swap(true, Ordering::AcqRel) {
                        let usage = self.source().usage();
                        events.push(Draft::end(usage).into_record(self.tag));
                    }
                    return;
                }
            }
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
    handle::new::<Stream>(Shared::new(source, tag, queue))
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
        if stream.signal.queue.is_some() {
            return Err(invalid("stream", "belongs to a completion queue; poll that"));
        }
        Ok(match stream.next(deadline(timeout_ms)) {
            Err(status) => status,
            Ok(None) => PAGEDLLM_END,
            Ok(Some(draft)) => {
                out.set(draft.into_record(stream.tag));
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
        stream.source().cancel();
        stream.signal.wake_by_ref();
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
