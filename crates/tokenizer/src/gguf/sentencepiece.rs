//! SentencePiece vocabularies: the merges that a list of scores stands for.
//!
//! SentencePiece joins the two neighbours whose joined piece has the best score. A list of merges
//! says the same: every way to cut a piece in two known pieces, best score first. The order among
//! equals is the one with which Hugging Face converts such vocabularies, so the ids agree.

use std::collections::HashMap;

use pagedllm_core::{TokenKind, VocabSpec};
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::prepend::Prepend;
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::{NormalizerWrapper, Sequence};

use super::{invalid, vocab_of};
use crate::TokenizerError;
use crate::decode::SPACE_MARK;

/// The longest piece that is cut, in characters; longer ones are matched whole or not at all.
const MAX_PIECE_CHARS: usize = 256;

/// The tokens as SentencePiece spells them: some files write a run of spaces as it is.
pub(super) fn spell(tokens: &[String]) -> Vec<String> {
    let is_blank = |token: &str| !token.is_empty() && token.bytes().all(|byte| byte == b' ');
    let mark = SPACE_MARK.to_string();
    tokens
        .iter()
        .map(|token| if is_blank(token) { token.replace(' ', &mark) } else { token.clone() })
        .collect()
}

pub(super) fn build(
    spec: &VocabSpec,
    tokens: &[String],
    scores: &[f32],
    add_space_prefix: bool,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let unknown = spec.unk.or_else(|| {
        let index = spec.kinds.iter().position(|&kind| kind == TokenKind::Unknown)?;
        u32::try_from(index).ok()
    });
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab_of(tokens)?, merges(spec, tokens, scores))
        .fuse_unk(true)
        .byte_fallback(true);
    if let Some(unknown) = unknown {
        builder = builder.unk_token(tokens[unknown as usize].clone());
    }
    let model = builder.build().map_err(|error| invalid(format!("tokens: {error}")))?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    let mark = SPACE_MARK.to_string();
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if add_space_prefix {
        steps.push(Prepend::new(mark.clone()).into());
    }
    let spaces = Replace::new(" ", mark).map_err(|error| invalid(error.to_string()))?;
    steps.push(spaces.into());
    tokenizer.with_normalizer(Some(Sequence::new(steps)));
    Ok(tokenizer)
}

/// Every way to cut a piece in two, best first.
fn merges(spec: &VocabSpec, tokens: &[String], scores: &[f32]) -> Vec<(String, String)> {
    let mut ids: HashMap<&str, usize> = HashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        ids.entry(token).or_insert(id);
    }
    // Score, lengths in characters, ids of the two pieces.
    let mut cuts: Vec<(f32, usize, usize, &str, &str)> = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        let score = match spec.kinds[id] {
            // Adding zero makes -0 and 0 equal.
            TokenKind::Normal | TokenKind::Unused => scores[id] + 0.0,
            // Files give these an arbitrary low score; SentencePiece itself gives them zero.
            TokenKind::UserDefined => 0.0,
            TokenKind::Control | TokenKind::Unknown | TokenKind::Byte => continue,
        };
        let length = token.chars().count();
        if length > MAX_PIECE_CHARS {
            continue;
        }
        let first = cuts.len();
        for (left_length, (border, _)) in token.char_indices().enumerate().skip(1) {
            let (left, right) = token.split_at(border);
            if ids.contains_key(left) && ids.contains_key(right) {
                cuts.push((score, left_length, length - left_length, left, right));
            }
        }
        cuts[first..].sort_by_key(|(_, _, _, left, right)| (ids[left], ids[right]));
    }
    cuts.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
    cuts.into_iter().map(|(_, _, _, left, right)| (left.to_owned(), right.to_owned())).collect()
}
