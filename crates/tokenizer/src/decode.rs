//! From tokens to bytes: one table for the whole vocabulary, made once at load.
//!
//! Each decoder that is supported maps a token to bytes on its own; only the start of the text
//! differs (some vocabularies write a space before the first word). So a stream can be decoded
//! token by token and gives exactly what decoding all of it at once gives.

use pagedllm_core::TokenId;
use tokenizers::DecoderWrapper;

use crate::TokenizerError;

/// What SentencePiece writes for a space.
pub(crate) const SPACE_MARK: char = '\u{2581}';

/// How a token's spelling becomes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Each character stands for one byte (GPT-2's table); other text stands for itself.
    ByteLevel,
    /// `▁` is a space and `<0xHH>` a byte.
    SentencePiece,
    /// `▁` is a space.
    Metaspace,
}

/// What is dropped at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Nothing.
    Whole,
    /// At most so many spaces.
    WithoutSpaces(usize),
    /// Every space mark of the first token.
    WithoutFirstMarks,
}

/// The way from a token to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecodeRule {
    /// Of one token.
    pub(crate) spelling: Spelling,
    /// Of the text.
    pub(crate) start: Start,
}

impl DecodeRule {
    /// The rule that a decoder of `tokenizer.json` stands for.
    pub(crate) fn of(decoder: Option<&DecoderWrapper>) -> Result<Self, TokenizerError> {
        let value = serde_json::to_value(decoder).unwrap_or_default();
        let parts = match value["decoders"].as_array() {
            Some(parts) => parts.clone(),
            None => vec![value],
        };
        let mut rule = None;
        let mut start = Start::Whole;
        let mut is_fused = false;
        for part in &parts {
            let kind = part["type"].as_str().unwrap_or("none");
            match kind {
                "ByteLevel" => rule = Some(Spelling::ByteLevel),
                "Metaspace" if part["replacement"] == SPACE_MARK.to_string() => {
                    rule = Some(Spelling::Metaspace);
                    if part["prepend_scheme"] != "never" {
                        start = Start::WithoutFirstMarks;
                    }
                }
                "ByteFallback" => rule = Some(Spelling::SentencePiece),
                "Fuse" => is_fused = true,
                "Replace"
                    if part["pattern"]["String"] == SPACE_MARK.to_string()
                        && part["content"] == " " => {}
                "Strip" if is_fused && part["content"] == " " && part["stop"] == 0 => {
                    let count = part["start"].as_u64().and_then(|n| usize::try_from(n).ok());
                    start = Start::WithoutSpaces(count.unwrap_or(0));
                }
                _ => return Err(TokenizerError::UnsupportedDecoder { kind: kind.to_owned() }),
            }
        }
        let spelling =
            rule.ok_or_else(|| TokenizerError::UnsupportedDecoder { kind: "none".to_owned() })?;
        Ok(Self { spelling, start })
    }
}

/// Every token's bytes, and what of them is shown.
#[derive(Debug)]
pub(crate) struct TokenTable {
    pub(crate) rule: DecodeRule,
    bytes: Vec<u8>,
    /// `[vocab + 1]` where each token's bytes begin.
    starts: Vec<u32>,
    /// `[vocab]` whether a token is special.
    special: Vec<bool>,
}

impl TokenTable {
    /// The table of `tokens`: spelling and whether special; `None` where an id is not used.
    pub(crate) fn new(rule: DecodeRule, tokens: &[Option<(String, bool)>]) -> Self {
        let alphabet = ByteAlphabet::new();
        let mut table = Self {
            rule,
            bytes: Vec::new(),
            starts: vec![0],
            special: Vec::with_capacity(tokens.len()),
        };
        for token in tokens {
            if let Some((text, _)) = token {
                table.push_bytes(text, &alphabet);
            }
            table.special.push(token.as_ref().is_some_and(|(_, special)| *special));
            // A vocabulary file is far below 4 GiB (see the file limit in `tokenizer.rs`).
            table.starts.push(u32::try_from(table.bytes.len()).unwrap_or(u32::MAX));
        }
        table
    }

    fn push_bytes(&mut self, text: &str, alphabet: &ByteAlphabet) {
        match self.rule.spelling {
            Spelling::ByteLevel => match alphabet.bytes(text) {
                Some(bytes) => self.bytes.extend(bytes),
                None => self.bytes.extend(text.as_bytes()),
            },
            Spelling::SentencePiece => match byte_token(text) {
                Some(byte) => self.bytes.push(byte),
                None => self.bytes.extend(text.replace(SPACE_MARK, " ").as_bytes()),
            },
            Spelling::Metaspace => self.bytes.extend(text.replace(SPACE_MARK, " ").as_bytes()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.special.len()
    }

    pub(crate) fn bytes(&self, token: TokenId) -> &[u8] {
        let index = token as usize;
        match (self.starts.get(index), self.starts.get(index + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }

    pub(crate) fn is_special(&self, token: TokenId) -> bool {
        self.special.get(token as usize).copied().unwrap_or(false)
    }
}

/// The byte that a `<0xHH>` token stands for.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// GPT-2's table between bytes and printable characters.
struct ByteAlphabet {
    /// Indexed by character, which is below U+0144.
    bytes: [Option<u8>; 0x144],
}

impl ByteAlphabet {
    fn new() -> Self {
        let mut bytes = [None; 0x144];
        let mut next = 0x100;
        for byte in 0..=255u8 {
            let is_printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
            let code = if is_printable {
                usize::from(byte)
            } else {
                next += 1;
                next - 1
            };
            bytes[code] = Some(byte);
        }
        Self { bytes }
    }

    /// `None` if any character is not in the table.
    fn bytes(&self, text: &str) -> Option<Vec<u8>> {
        text.chars().map(|c| self.bytes.get(c as usize).copied().flatten()).collect()
    }
}
