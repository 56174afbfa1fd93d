//! The log of one engine: whole lines to the host's callback, from any thread.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::fmt::Write;
use std::sync::{Arc, PoisonError, RwLock};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Receives a line of the log: a level (PAGEDLLM_LOG_*), the part that speaks, and the line. The
/// texts are UTF-8 without NUL at their ends and live during the call. It may run on any thread,
/// on several at once, and must neither free a handle nor throw.
pub type LogCallback = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        level: u32,
        target: *const c_char,
        target_len: usize,
        message: *const c_char,
        message_len: usize,
    ),
>;

/// Log level: something failed.
pub const PAGEDLLM_LOG_ERROR: u32 = 1;
/// Log level: something is odd.
pub const PAGEDLLM_LOG_WARN: u32 = 2;
/// Log level: what an operator wants to know.
pub const PAGEDLLM_LOG_INFO: u32 = 3;
/// Log level: what a developer wants to know.
pub const PAGEDLLM_LOG_DEBUG: u32 = 4;
/// Log level: everything.
pub const PAGEDLLM_LOG_TRACE: u32 = 5;

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside of a callback of the host.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs a callback of the host; what it calls can see that.
pub(crate) fn as_callback<T>(call: impl FnOnce() -> T) -> T {
    let outer = IN_CALLBACK.replace(true);
    let result = call();
    IN_CALLBACK.set(outer);
    result
}

/// The callback, until it is closed.
pub(crate) struct Gate(RwLock<Option<Target>>);

struct Target {
    callback: unsafe extern "C" fn(*mut c_void, u32, *const c_char, usize, *const c_char, usize),
    user_data: *mut c_void,
}

// SAFETY: the pointer is only passed on, and the host says that its callback takes it anywhere.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Gate {
    /// After this no call is under way and none follows.
    fn close(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn send(&self, level: Level, target: &str, line: &str) {
        // A callback that makes the library log again would wait for itself.
        if in_callback() {
            return;
        }
        let gate = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Target { callback, user_data }) = &*gate else { return };
        let level = match level {
            Level::ERROR => PAGEDLLM_LOG_ERROR,
            Level::WARN => PAGEDLLM_LOG_WARN,
            Level::INFO => PAGEDLLM_LOG_INFO,
            Level::DEBUG => PAGEDLLM_LOG_DEBUG,
            Level::TRACE => PAGEDLLM_LOG_TRACE,
        };
        // SAFETY: the host gave this callback for this; the gate is open.
        as_callback(|| unsafe {
            callback(
                *user_data,
                level,
                target.as_ptr().cast(),
                target.len(),
                line.as_ptr().cast(),
                line.len(),
            );
        });
    }
}

/// A log that can be closed.
pub(crate) struct Log {
    pub(crate) dispatch: Dispatch,
    gate: Option<Arc<Gate>>,
}

impl Log {
    /// A log to a callback, up to a level; 0 is PAGEDLLM_LOG_INFO. Without a callback nothing is
    /// logged anywhere.
    pub(crate) fn new(callback: LogCallback, user_data: *mut c_void, level: u32) -> Self {
        let Some(callback) = callback else {
            return Self { dispatch: Dispatch::none(), gate: None };
        };
        let level = match level {
            PAGEDLLM_LOG_ERROR => LevelFilter::ERROR,
            PAGEDLLM_LOG_WARN => LevelFilter::WARN,
            0 | PAGEDLLM_LOG_INFO => LevelFilter::INFO,
            PAGEDLLM_LOG_DEBUG => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        let gate = Arc::new(Gate(RwLock::new(Some(Target { callback, user_data }))));
        let dispatch = Dispatch::new(Lines { gate: Arc::clone(&gate), level });
        Self { dispatch, gate: Some(gate) }
    }

    /// After this the callback is not called any more.
    pub(crate) fn close(&self) {
        if let Some(gate) = &self.gate {
            gate.close();
        }
    }
}

/// Turns events into lines. Spans are not shown.
struct Lines {
    gate: Arc<Gate>,
    level: LevelFilter,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_ours = metadata.target().starts_with("pagedllm");
        let level = if is_ours { self.level } else { self.level.min(LevelFilter::WARN) };
        metadata.is_event() && *metadata.level() <= level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let metadata = event.metadata();
        self.gate.send(
            *metadata.level(),
            metadata.target(),
            &format!("{}{}", line.message, line.fields),
        );
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The message, then its fields as `name=value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string can't fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    unsafe extern "C" fn keep(
        user_data: *mut c_void,
        level: u32,
        _target: *const c_char,
        _target_len: usize,
        message: *const c_char,
        message_len: usize,
    ) {
        // SAFETY: the test passes a live mutex, and the line is a text during the call.
        let (lines, line) = unsafe {
            let line = std::slice::from_raw_parts(message.cast::<u8>(), message_len);
            (&*user_data.cast::<Mutex<Vec<(u32, String)>>>(), line)
        };
        lines.lock().expect("lock").push((level, String::from_utf8_lossy(line).into_owned()));
    }

    #[test]
    fn lines_come_up_to_the_level_until_the_log_is_closed() {
        let lines: Mutex<Vec<(u32, String)>> = Mutex::new(Vec::new());
        let user_data = std::ptr::from_ref(&lines).cast_mut().cast();
        let log = Log::new(Some(keep), user_data, 0);
        tracing::dispatcher::with_default(&log.dispatch, || {
            tracing::info!(target: "pagedllm_test", rows = 3, "a step of {}", 2);
            tracing::debug!(target: "pagedllm_test", "too fine");
            tracing::info!(target: "elsewhere", "not ours");
            tracing::warn!(target: "elsewhere", "trouble");
            log.close();
            tracing::error!(target: "pagedllm_test", "too late");
        });
        let expected = [(3, "a step of 2 rows=3".to_owned()), (2, "trouble".to_owned())];
        assert_eq!(*lines.lock().expect("lock"), expected);
    }
}
