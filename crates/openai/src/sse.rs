//! Framing of server-sent events.

/// One event: `data: <payload>` and an empty line. Payloads are one line: JSON escapes line ends.
#[must_use]
pub fn frame(payload: &str) -> String {
    debug_assert!(!payload.is_empty() && !payload.contains(['\n', '\r']), "one line");
    format!("data: {payload}\n\n")
}
