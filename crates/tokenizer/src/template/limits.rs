//! What a template may cost. A template comes with a model's files and may be hostile.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::Object;
use minijinja::{Error, ErrorKind, State, Value};

/// The longest source that is compiled, in bytes.
pub(crate) const MAX_SOURCE_BYTES: usize = 1 << 20;
/// The longest prompt, in bytes.
pub(crate) const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// The bytes that all texts made during one rendering may have together.
pub(crate) const MAX_MADE_BYTES: u64 = 256 << 20;
/// Instructions of one rendering.
pub(crate) const MAX_FUEL: u64 = 4_000_000;
/// Calls within calls.
pub(crate) const MAX_RECURSION: usize = 100;
/// Stack of the thread that renders: enough for what `MAX_FUEL` can nest.
pub(crate) const STACK_BYTES: usize = 512 << 20;

/// A limit that was exceeded, as the source of the error that says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exceeded {
    pub(crate) limit: u64,
    pub(crate) unit: &'static str,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit of {} {}", self.limit, self.unit)
    }
}

impl std::error::Error for Exceeded {}

/// Counts the bytes that one rendering made.
#[derive(Debug, Default)]
struct Made(AtomicU64);

impl Object for Made {}

/// Charges one rendering for a text of `bytes` that it is about to make.
pub(crate) fn charge(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    let made = state.get_or_set_temp_object("pagedllm.made", Made::default);
    let before = made.0.fetch_add(bytes as u64, Ordering::Relaxed);
    if before.saturating_add(bytes as u64) > MAX_MADE_BYTES {
        let exceeded = Exceeded { limit: MAX_MADE_BYTES, unit: "bytes of text in all" };
        return Err(
            Error::new(ErrorKind::InvalidOperation, exceeded.to_string()).with_source(exceeded)
        );
    }
    Ok(())
}

/// Charges for a text and returns it.
pub(crate) fn charged(state: &State<'_, '_>, text: String) -> Result<Value, Error> {
    charge(state, text.len())?;
    Ok(Value::from(text))
}

/// The prompt as it is written, up to the limit.
#[derive(Debug, Default)]
pub(crate) struct Prompt {
    pub(crate) bytes: Vec<u8>,
}

impl io::Write for Prompt {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() as u64 + bytes.len() as u64 > MAX_OUTPUT_BYTES {
            let exceeded = Exceeded { limit: MAX_OUTPUT_BYTES, unit: "bytes of prompt" };
            return Err(io::Error::other(exceeded));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
