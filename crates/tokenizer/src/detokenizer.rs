//! From a growing list of tokens to text, whole characters only.
//!
//! Each token's bytes are appended to at most three that are still waiting for the rest of their
//! character. So a token costs its own length, and what a stream emits is what decoding all of it
//! emits, since [`crate::Tokenizer::decode`] is the same walk.

use std::sync::Arc;

use pagedllm_core::TokenId;

use crate::decode::{Spelling, Start, TokenTable};

/// Decodes the tokens of one sequence as they come.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    table: Arc<TokenTable>,
    skips_special: bool,
    /// Bytes of an unfinished character.
    pending: Vec<u8>,
    /// Spaces that may still be dropped; `None` after the start.
    start: Option<Start>,
}

impl Detokenizer {
    pub(crate) fn new(table: Arc<TokenTable>, skips_special: bool) -> Self {
        let start = Some(table.rule.start);
        Self { table, skips_special, pending: Vec::new(), start }
    }

    /// Reads one token and gives the characters that are now complete; often none. Bytes that
    /// can't become a character give U+FFFD, and an unknown id gives nothing.
    pub fn push(&mut self, token: TokenId) -> String {
        if self.skips_special && self.table.is_special(token) {
            return String::new();
        }
        let table = Arc::clone(&self.table);
        let bytes = self.without_start(table.bytes(token));
        self.pending.extend_from_slice(bytes);
        self.take_complete()
    }

    /// The sequence is over: U+FFFD for a character that never became complete, else nothing.
    pub fn finish(&mut self) -> String {
        let count = match (self.pending.len(), self.table.rule.spelling) {
            (0, _) => 0,
            (bytes, Spelling::SentencePiece) => bytes,
            _ => 1,
        };
        self.pending.clear();
        "\u{FFFD}".repeat(count)
    }

    /// The part of a token that is shown, if it may be the first of the text.
    fn without_start<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(start) = self.start else { return bytes };
        let num_spaces = bytes.iter().take_while(|&&b| b == b' ').count();
        match start {
            Start::Whole => {
                self.start = None;
                bytes
            }
            Start::WithoutSpaces(limit) => {
                let dropped = num_spaces.min(limit);
                let left = limit - dropped;
                let goes_on = left > 0 && dropped == bytes.len();
                self.start = goes_on.then_some(Start::WithoutSpaces(left));
                &bytes[dropped..]
            }
            Start::WithoutFirstMarks => {
                self.start = None;
                &bytes[num_spaces..]
            }
        }
    }

    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, invalid) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(length) = error.error_len() else {
                        rest = invalid;
                        break;
                    };
                    let is_per_byte = self.table.rule.spelling == Spelling::SentencePiece;
                    let count = if is_per_byte { length } else { 1 };
                    text.extend(std::iter::repeat_n('\u{FFFD}', count));
                    rest = &invalid[length..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }
}
