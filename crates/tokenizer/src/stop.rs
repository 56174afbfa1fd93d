//! Stop strings across token borders.
//!
//! The matcher reads generated text in pieces of any size and never sees the prompt. It keeps,
//! for each stop string, how much of it the text read so far ends with (Knuth, Morris and Pratt),
//! so a piece costs its length times the number of stop strings, whatever came before.
//!
//! # Invariants
//! 1. What is held back is the longest end of the text that may still begin a match.
//! 2. The first match to be complete wins; of those complete at once the longest, then the first
//!    in the list. So the cut does not depend on how the text was cut into pieces.
//! 3. A stop string is valid UTF-8, so a match and what is held back begin at a character.

use crate::TokenizerError;

/// How many stop strings a request may have.
const MAX_STOPS: usize = 64;
/// How long one may be, in bytes.
const MAX_STOP_BYTES: usize = 4096;

/// Text that may be shown now, and whether generation is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that can no longer be part of a match; often empty.
    pub release: String,
    /// Index of the stop string that matched; the text ends here.
    pub matched: Option<usize>,
}

/// Finds the first stop string in the generated text of one sequence.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    includes_stop: bool,
    held: String,
    is_over: bool,
}

#[derive(Clone, Debug)]
struct Pattern {
    text: Vec<u8>,
    /// `[text]` length of the longest proper border of each prefix.
    borders: Vec<usize>,
    /// How many bytes of the pattern the text ends with.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let text = text.as_bytes().to_vec();
        let mut borders = vec![0; text.len()];
        let mut length = 0;
        for i in 1..text.len() {
            while length > 0 && text[i] != text[length] {
                length = borders[length - 1];
            }
            length += usize::from(text[i] == text[length]);
            borders[i] = length;
        }
        Self { text, borders, matched: 0 }
    }

    /// Reads one byte; whether the pattern is now complete.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.text[self.matched] == byte);
        self.matched == self.text.len()
    }
}

impl StopMatcher {
    /// A matcher for `stops`. With `include_stop_str` the released text ends with the stop string
    /// that matched, otherwise it ends just before.
    ///
    /// # Errors
    /// If a stop string is empty or longer than 4096 bytes, or if there are more than 64.
    pub fn new(stops: &[String], include_stop_str: bool) -> Result<Self, TokenizerError> {
        if stops.len() > MAX_STOPS {
            return Err(TokenizerError::TooManyStops { count: stops.len(), limit: MAX_STOPS });
        }
        for (index, stop) in stops.iter().enumerate() {
            if stop.is_empty() {
                return Err(TokenizerError::EmptyStop { index });
            }
            if stop.len() > MAX_STOP_BYTES {
                let (bytes, limit) = (stop.len(), MAX_STOP_BYTES);
                return Err(TokenizerError::StopTooLong { index, bytes, limit });
            }
        }
        let patterns = stops.iter().map(|stop| Pattern::new(stop)).collect();
        Ok(Self { patterns, includes_stop: include_stop_str, held: String::new(), is_over: false })
    }

    /// Reads the next piece of generated text. After a match, further text is dropped.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.is_over {
            return StopStep::default();
        }
        if self.patterns.is_empty() {
            return StopStep { release: text.to_owned(), matched: None };
        }
        for (offset, &byte) in text.as_bytes().iter().enumerate() {
            let mut complete: Option<(usize, usize)> = None;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                let length = pattern.text.len();
                if pattern.step(byte) && complete.is_none_or(|(_, longest)| length > longest) {
                    complete = Some((index, length));
                }
            }
            if let Some((index, length)) = complete {
                self.is_over = true;
                let mut release = std::mem::take(&mut self.held);
                release.push_str(&text[..=offset]);
                if !self.includes_stop {
                    release.truncate(release.len() - length);
                }
                return StopStep { release, matched: Some(index) };
            }
        }
        self.held.push_str(text);
        let keep = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - keep);
        StopStep { release: std::mem::replace(&mut self.held, tail), matched: None }
    }

    /// Generation ended without a match: the text that was still held back.
    pub fn finish(&mut self) -> String {
        self.is_over = true;
        std::mem::take(&mut self.held)
    }
}
