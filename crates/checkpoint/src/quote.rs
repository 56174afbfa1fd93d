//! Text from files, made safe for messages.

/// Longest text that a message repeats, in characters.
const MAX_CHARS: usize = 80;

/// `text` with control characters escaped, cut after 80 characters.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted: String = text.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        quoted.push_str("...");
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn hostile_text_is_escaped_and_cut() {
        assert_eq!(quote("blk.0\n\u{1b}[31m"), "blk.0\\n\\u{1b}[31m");
        assert_eq!(quote(&"é".repeat(81)), format!("{}...", "é".repeat(80)));
    }
}
