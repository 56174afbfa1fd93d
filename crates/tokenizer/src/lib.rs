//! Text to tokens and back, chat templates, stop strings.
//!
//! A [`Tokenizer`] turns text into token ids. It comes from a `tokenizer.json` or from the
//! vocabulary that a GGUF file embeds, and gives the ids that Hugging Face gives. A
//! [`Detokenizer`] turns one growing list of tokens back into text and emits whole characters
//! only. A [`StopMatcher`] reads that text and holds back what may still become a stop string. A
//! [`ChatTemplate`] renders a conversation as transformers would, byte for byte.
//!
//! This crate knows no model, no sampling and no wire format. It opens only the tokenizer files
//! it is told to, and reads no clock.

mod config;
mod decode;
mod detokenizer;
mod error;
mod gguf;
mod stop;
mod template;
mod tokenizer;

pub use config::{NamedTemplate, SpecialTokens};
pub use detokenizer::Detokenizer;
pub use error::{TemplateError, TokenizerError};
pub use stop::{StopMatcher, StopStep};
pub use template::{ChatInput, ChatTemplate, ContentFormat};
pub use tokenizer::{EncodeOptions, Tokenizer};
