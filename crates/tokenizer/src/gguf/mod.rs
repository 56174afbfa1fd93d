//! Tokenizers from the vocabularies that GGUF files embed.
//!
//! A byte-level vocabulary brings its merges and the name of its pre-tokenizer. A SentencePiece
//! vocabulary brings scores; its merges follow from them (`sentencepiece.rs`). Both then run on
//! the `tokenizers` crate, so that the ids are those of the model's `tokenizer.json`. Control and
//! user-defined tokens are matched whole, by their kind and not by how they look.

mod pre_tokenizer;
mod sentencepiece;

use pagedllm_core::{TokenId, TokenKind, VocabModel, VocabSpec};
use serde_json::Map;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;

use crate::TokenizerError;
use crate::config::{NamedTemplate, SpecialTokens};
use crate::decode::{DecodeRule, Spelling, Start};
use crate::tokenizer::{Frame, Parts};
use pre_tokenizer::Cutting;

/// The tokenizer that `spec` describes.
pub(crate) fn parts(spec: &VocabSpec) -> Result<Parts, TokenizerError> {
    check(spec)?;
    let (mut model, rule, tokens) = match &spec.model {
        VocabModel::Bpe { merges, pre } => {
            let cutting = match &pre.0 {
                Some(name) => Cutting::named(name)
                    .ok_or_else(|| TokenizerError::UnknownPreTokenizer { name: name.clone() })?,
                None => {
                    tracing::warn!(
                        "the vocabulary does not name its pre-tokenizer (tokenizer.ggml.pre); \
                         text is cut as for GPT-2, which gives worse tokens for most models"
                    );
                    Cutting::FALLBACK
                }
            };
            let rule = DecodeRule { spelling: Spelling::ByteLevel, start: Start::Whole };
            (byte_level(&spec.tokens, merges, cutting)?, rule, spec.tokens.clone())
        }
        VocabModel::SentencePiece { scores, add_space_prefix } => {
            let tokens = sentencepiece::spell(&spec.tokens);
            let model = sentencepiece::build(spec, &tokens, scores, *add_space_prefix)?;
            let start = if *add_space_prefix { Start::WithoutSpaces(1) } else { Start::Whole };
            (model, DecodeRule { spelling: Spelling::SentencePiece, start }, tokens)
        }
    };
    add_whole_tokens(&mut model, spec, &tokens);
    let text_of = |token: Option<TokenId>| token.map(|id| tokens[id as usize].clone());
    let mut special = Map::new();
    let named = [
        ("bos_token", spec.bos),
        ("eos_token", spec.eos),
        ("unk_token", spec.unk),
        ("pad_token", spec.pad),
    ];
    for (name, token) in named {
        if let Some(text) = text_of(token) {
            special.insert(name.to_owned(), text.into());
        }
    }
    let when = |is_added: bool, token: Option<TokenId>| token.filter(|_| is_added);
    let frame = Frame {
        asks_post_processor: false,
        prefix: when(spec.add_bos, spec.bos).into_iter().collect(),
        suffix: when(spec.add_eos, spec.eos).into_iter().collect(),
    };
    let templates = spec
        .chat_template
        .iter()
        .map(|source| NamedTemplate { name: "default".to_owned(), source: source.clone() })
        .collect();
    Ok(Parts { model, rule, frame, special_tokens: SpecialTokens(special), templates })
}

fn invalid(message: String) -> TokenizerError {
    TokenizerError::InvalidVocab { message }
}

fn check(spec: &VocabSpec) -> Result<(), TokenizerError> {
    let size = spec.tokens.len();
    if spec.kinds.len() != size {
        let kinds = spec.kinds.len();
        return Err(invalid(format!("tokens has {size} items, token_type has {kinds}")));
    }
    if let VocabModel::SentencePiece { scores, .. } = &spec.model
        && scores.len() != size
    {
        let scores = scores.len();
        return Err(invalid(format!("tokens has {size} items, scores has {scores}")));
    }
    let named =
        [("bos", spec.bos), ("eos", spec.eos), ("unknown", spec.unk), ("padding", spec.pad)];
    for (name, token) in named {
        if let Some(id) = token.filter(|&id| id as usize >= size) {
            return Err(invalid(format!("{name}_token_id is {id}, but there are {size} tokens")));
        }
    }
    Ok(())
}

/// Spelling to id; of two tokens spelled alike the first is the one that text can become.
fn vocab_of(tokens: &[String]) -> Result<Vocab, TokenizerError> {
    let mut vocab = Vocab::default();
    for (id, token) in tokens.iter().enumerate() {
        let id = TokenId::try_from(id).map_err(|_| invalid("too many tokens".to_owned()))?;
        vocab.entry(token.clone()).or_insert(id);
    }
    Ok(vocab)
}

fn byte_level(
    tokens: &[String],
    merges: &[String],
    cutting: Cutting,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let mut pairs = Vec::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        // A piece may begin with a space only in files that spell spaces out; the border is then
        // the first space that is not at the start.
        let border = merge.char_indices().skip(1).find(|&(_, c)| c == ' ');
        let Some((border, _)) = border else {
            return Err(invalid(format!("merges[{index}] {merge:?} is not two pieces")));
        };
        pairs.push((merge[..border].to_owned(), merge[border + 1..].to_owned()));
    }
    let model = BPE::builder()
        .vocab_and_merges(vocab_of(tokens)?, pairs)
        .ignore_merges(cutting.ignores_merges)
        .build()
        .map_err(|error| invalid(format!("merges: {error}")))?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_normalizer(cutting.composes.then_some(NFC));
    let cuts = cutting.build().map_err(|error| invalid(format!("pre-tokenizer: {error}")))?;
    tokenizer.with_pre_tokenizer(Some(cuts));
    Ok(tokenizer)
}

/// Control tokens become special, user-defined tokens are matched whole and shown.
fn add_whole_tokens(model: &mut tokenizers::Tokenizer, spec: &VocabSpec, tokens: &[String]) {
    let added: Vec<AddedToken> = tokens
        .iter()
        .zip(&spec.kinds)
        .filter(|(token, _)| !token.is_empty())
        .filter_map(|(token, kind)| match kind {
            TokenKind::Control | TokenKind::Unknown => Some(AddedToken::from(token.clone(), true)),
            TokenKind::UserDefined => Some(AddedToken::from(token.clone(), false)),
            TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => None,
        })
        .map(|token| token.normalized(false))
        .collect();
    model.add_tokens(&added);
}
