//! Tokenizers from the vocabularies that GGUF files embed.

use pagedllm_core::VocabSpec;

use crate::TokenizerError;
use crate::tokenizer::Parts;

/// The tokenizer that `spec` describes.
pub(crate) fn parts(_spec: &VocabSpec) -> Result<Parts, TokenizerError> {
    Err(TokenizerError::InvalidVocab { message: "embedded vocabularies are not read".to_owned() })
}
