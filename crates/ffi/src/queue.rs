//! One completion queue for many streams.

use std::ffi::c_int;
use std::sync::Arc;

use crate::caller::{Caller, invalid};
use crate::error::{Error, Failure};
use crate::event::Event;
use crate::hand_over::{self, Flag, Nothing};
use crate::handle::{self, Opaque};
use crate::panic::guard;
use crate::status::{
    PAGEDLLM_INTERRUPTED, PAGEDLLM_OK, PAGEDLLM_OUT_OF_RESOURCES, PAGEDLLM_TIMED_OUT,
    PAGEDLLM_UNSUPPORTED, Status,
};
use crate::stream::{Tagged, deadline};
use crate::wake_fd::WakeFd;

/// A completion queue: events of all streams that were made with it.
pub struct Queue {
    _opaque: [u8; 0],
}

impl Opaque for Queue {
    type Object = Arc<Ready>;
    const MAGIC: u32 = u32::from_le_bytes(*b"pQue");
}

/// The streams of a queue that have something to say.
pub(crate) type Ready = hand_over::Ready<Tagged, WakeFd>;

impl Flag for WakeFd {
    fn raise(&self) {
        WakeFd::raise(self);
    }

    fn lower(&self) {
        WakeFd::lower(self);
    }
}

impl From<Nothing> for Status {
    fn from(nothing: Nothing) -> Self {
        match nothing {
            Nothing::TimedOut => PAGEDLLM_TIMED_OUT,
            Nothing::Interrupted => PAGEDLLM_INTERRUPTED,
        }
    }
}

/// Makes a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_queue_new(
    out: *mut *mut Queue,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let out = caller.out(out, "out")?;
        let fd = WakeFd::new().map_err(|error| {
            let status = match error.kind() {
                std::io::ErrorKind::Unsupported => PAGEDLLM_UNSUPPORTED,
                _ => PAGEDLLM_OUT_OF_RESOURCES,
            };
            Failure::new(status, format!("no file descriptor for the queue: {error}"))
        })?;
        out.set(handle::new::<Queue>(Arc::new(Ready::new(fd))));
        Ok(PAGEDLLM_OK)
    })
}

/// Waits until there are events, for timeout_ms at most (PAGEDLLM_FOREVER waits without limit),
/// and writes up to `capacity` of them to `events` and their number to `count`. Each is freed
/// with pagedllm_event_free. The events of one stream come in their order if one thread polls.
/// Returns PAGEDLLM_OK with one event or more, PAGEDLLM_TIMED_OUT or PAGEDLLM_INTERRUPTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_queue_poll(
    queue: *const Queue,
    timeout_ms: u32,
    events: *mut *const Event,
    capacity: usize,
    count: *mut usize,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let queue = caller.enter(queue, "queue")?;
        let count = caller.out(count, "count")?;
        let places = caller.places(events, capacity, "events")?;
        if capacity == 0 {
            return Err(invalid("capacity", "is 0"));
        }
        match queue.poll(capacity, deadline(timeout_ms)) {
            Ok(taken) => {
                count.set(taken.len());
                places.set(&taken);
                Ok(PAGEDLLM_OK)
            }
            Err(nothing) => Ok(nothing.into()),
        }
    })
}

/// Makes one poll that waits, or else the next one that finds nothing, return
/// PAGEDLLM_INTERRUPTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_queue_interrupt(
    queue: *const Queue,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        caller.enter(queue, "queue")?.interrupt();
        Ok(PAGEDLLM_OK)
    })
}

/// The file descriptor of a queue, for poll, epoll and the like: readable while a poll would not
/// wait. It stays the queue's: not to be read, written or closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_queue_fd(
    queue: *const Queue,
    out: *mut c_int,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let queue = caller.enter(queue, "queue")?;
        caller.out(out, "out")?.set(queue.flag().raw());
        Ok(PAGEDLLM_OK)
    })
}

/// Frees a queue; its streams live on, and nobody reads them any more. NULL is fine.
/// PAGEDLLM_BUSY while another thread polls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_queue_free(queue: *mut Queue) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(std::ptr::null_mut()) }, |_| handle::free(queue, "queue"))
}
