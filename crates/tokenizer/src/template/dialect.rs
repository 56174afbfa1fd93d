//! What Jinja as transformers configures it reads, and minijinja doesn't: `{% generation %}`.
//!
//! The tag marks what an assistant wrote and renders its body. Here it becomes `{% with %}`, which
//! renders its body in a scope of its own, as the tag does.

/// A stretch of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a str),
    /// With its delimiters.
    Comment(&'a str),
    /// With its delimiters.
    Expression(&'a str),
    /// With its delimiters.
    Statement(&'a str),
}

/// The source as minijinja reads it, and the length of its longest stretch of plain text.
pub(crate) fn translate(source: &str) -> (String, usize) {
    let mut out = String::with_capacity(source.len());
    let mut longest = 0;
    let mut rest = source;
    let mut is_raw = false;
    while !rest.is_empty() {
        let part = next_part(rest, is_raw);
        match part {
            Part::Text(text) => {
                longest = longest.max(text.len());
                out.push_str(text);
                rest = &rest[text.len()..];
            }
            Part::Comment(tag) | Part::Expression(tag) => {
                out.push_str(tag);
                rest = &rest[tag.len()..];
            }
            Part::Statement(tag) => {
                let word = first_word(tag);
                is_raw = if is_raw { word != "endraw" } else { word == "raw" };
                match word {
                    "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
                    "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
                    _ => out.push_str(tag),
                }
                rest = &rest[tag.len()..];
            }
        }
    }
    (out, longest)
}

fn next_part(rest: &str, is_raw: bool) -> Part<'_> {
    let opens = |at: usize| {
        let tag = &rest[at..];
        tag.starts_with("{%") && (!is_raw || first_word(tag) == "endraw")
            || !is_raw && (tag.starts_with("{{") || tag.starts_with("{#"))
    };
    match rest.match_indices('{').map(|(at, _)| at).find(|&at| opens(at)) {
        None => Part::Text(rest),
        Some(0) if rest.starts_with("{#") => {
            Part::Comment(rest.find("#}").map_or(rest, |end| &rest[..end + 2]))
        }
        Some(0) if rest.starts_with("{{") => Part::Expression(&rest[..tag_end(rest, "}}")]),
        Some(0) => Part::Statement(&rest[..tag_end(rest, "%}")]),
        Some(at) => Part::Text(&rest[..at]),
    }
}

/// Where a tag ends: after the first `close` that is not inside a string.
fn tag_end(tag: &str, close: &str) -> usize {
    let bytes = tag.as_bytes();
    let mut quote = None;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if tag.as_bytes()[at..].starts_with(close.as_bytes()) => {
                return at + close.len();
            }
            _ => {}
        }
        at += 1;
    }
    tag.len()
}

fn first_word(tag: &str) -> &str {
    let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let end = inner.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(inner.len());
    &inner[..end]
}
