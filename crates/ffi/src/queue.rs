//! One completion queue for many streams.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::caller::{Caller, invalid};
use crate::error::{Error, Failure};
use crate::event::Event;
use crate::handle::{self, Opaque};
use crate::panic::guard;
use crate::status::{
    PAGEDLLM_INTERRUPTED, PAGEDLLM_OK, PAGEDLLM_OUT_OF_RESOURCES, PAGEDLLM_TIMED_OUT,
    PAGEDLLM_UNSUPPORTED, Status,
};
use crate::stream::{Shared, deadline};
use crate::wake_fd::WakeFd;

/// A completion queue: events of all streams that were made with it.
pub struct Queue {
    _opaque: [u8; 0],
}

impl Opaque for Queue {
    type Object = Arc<Ready>;
    const MAGIC: u32 = u32::from_le_bytes(*b"pQue");
}

/// The streams that have something to say. Each is in the list once at most, so its length is
/// bounded by the number of streams.
pub struct Ready {
    state: Mutex<State>,
    changed: Condvar,
    fd: WakeFd,
}

#[derive(Default)]
struct State {
    streams: VecDeque<Weak<Shared>>,
    interrupted: bool,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream that is not in the list.
    pub(crate) fn push(&self, stream: Weak<Shared>) {
        let mut state = self.lock();
        if state.streams.is_empty() {
            self.fd.raise();
        }
        state.streams.push_back(stream);
        drop(state);
        self.changed.notify_one();
    }

    /// Takes the next stream that is alive.
    fn pop(&self) -> Option<Arc<Shared>> {
        let mut state = self.lock();
        loop {
            let stream = state.streams.pop_front();
            if state.streams.is_empty() && !state.interrupted {
                self.fd.lower();
            }
            match stream?.upgrade() {
                Some(stream) => return Some(stream),
                None => continue,
            }
        }
    }

    fn interrupt(&self) {
        let mut state = self.lock();
        state.interrupted = true;
        self.fd.raise();
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for a stream; a status where there is none.
    fn wait(&self, until: Option<Instant>) -> Option<Status> {
        let mut state = self.lock();
        loop {
            if !state.streams.is_empty() {
                return None;
            }
            if std::mem::take(&mut state.interrupted) {
                self.fd.lower();
                return Some(PAGEDLLM_INTERRUPTED);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return Some(PAGEDLLM_TIMED_OUT),
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Fills `events` as far as there is something, stream after stream.
    fn collect(&self, events: &mut Vec<*const Event>, capacity: usize) {
        while events.len() < capacity {
            let Some(stream) = self.pop() else { return };
            stream.collect(events, capacity);
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
        let ready = Ready { state: Mutex::default(), changed: Condvar::new(), fd };
        out.set(handle::new::<Queue>(Arc::new(ready)));
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
        let until = deadline(timeout_ms);
        let mut taken = Vec::new();
        loop {
            queue.collect(&mut taken, capacity);
            if !taken.is_empty() {
                count.set(taken.len());
                places.set(&taken);
                return Ok(PAGEDLLM_OK);
            }
            if let Some(status) = queue.wait(until) {
                return Ok(status);
            }
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
        caller.out(out, "out")?.set(queue.fd.raw());
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
