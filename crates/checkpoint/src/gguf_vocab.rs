//! The vocabulary that a GGUF carries.

use pagedllm_core::{PreTokenizer, TokenId, TokenKind, VocabModel, VocabSpec};

use crate::CheckpointError;
use crate::config::ends;
use crate::gguf::{Array, Gguf, Value};
use crate::gguf_config::{end_tokens, token};
use crate::quote::quote;

/// Control tokens that end a turn under these spellings, in files that have no key for it.
const TURN_ENDS: [&str; 8] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<EOT>",
    "_<EOT>",
];

/// A hostile file may repeat a spelling; real ones have a few.
const MAX_NAMED_ENDS: usize = 64;

/// Pre-tokenizers of models that begin every text with `bos` though their files don't say so.
const STARTS_WITH_BOS: [&str; 4] = ["llama3", "llama-v3", "llama-bpe", "tekken"];

/// The vocabulary, or `None` if there is none, or one for an algorithm that pagedllm has not.
///
/// # Errors
/// If its parts don't fit together.
pub(crate) fn read(gguf: &Gguf<'_>) -> Result<Option<VocabSpec>, CheckpointError> {
    let Some(name) = text(gguf, "tokenizer.ggml.model")? else { return Ok(None) };
    if !matches!(name, "gpt2" | "llama") {
        return Ok(None);
    }
    let tokens = texts(gguf, "tokenizer.ggml.tokens")?
        .ok_or_else(|| gguf.fail("tokenizer.ggml.tokens is absent".into()))?;
    let kinds = kinds(gguf, tokens.len())?;
    let pre = text(gguf, "tokenizer.ggml.pre")?;
    let is_bpe = name == "gpt2";
    let model = if is_bpe {
        let merges = texts(gguf, "tokenizer.ggml.merges")?
            .ok_or_else(|| gguf.fail("tokenizer.ggml.merges is absent".into()))?;
        VocabModel::Bpe { merges, pre: PreTokenizer(pre.map(Into::into)) }
    } else {
        VocabModel::SentencePiece {
            scores: scores(gguf, tokens.len())?,
            add_space_prefix: flag(gguf, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        }
    };
    let id = |key: &str| known(gguf, key, tokens.len());
    let eos = id("tokenizer.ggml.eos_token_id")?;
    let mut all_ends = Vec::new();
    ends(&mut all_ends, eos);
    ends(&mut all_ends, end_tokens(gguf)?);
    let named = tokens.iter().zip(&kinds).zip(0..).filter_map(|((piece, kind), id)| {
        (*kind == TokenKind::Control && TURN_ENDS.contains(&piece.as_str())).then_some(id)
    });
    ends(&mut all_ends, named.take(MAX_NAMED_ENDS));
    all_ends.retain(|&end| Some(end) != eos && (end as usize) < tokens.len());
    let starts_with_bos = !is_bpe || pre.is_some_and(|pre| STARTS_WITH_BOS.contains(&pre));
    let (bos, unk, pad) = (
        id("tokenizer.ggml.bos_token_id")?,
        id("tokenizer.ggml.unknown_token_id")?,
        id("tokenizer.ggml.padding_token_id")?,
    );
    Ok(Some(VocabSpec {
        model,
        tokens,
        kinds,
        bos,
        eos,
        other_ends: all_ends,
        unk,
        pad,
        add_bos: flag(gguf, "tokenizer.ggml.add_bos_token")?.unwrap_or(starts_with_bos),
        add_eos: flag(gguf, "tokenizer.ggml.add_eos_token")?.unwrap_or(false),
        chat_template: text(gguf, "tokenizer.chat_template")?.map(Into::into),
    }))
}

fn known(
    gguf: &Gguf<'_>,
    key: &str,
    num_tokens: usize,
) -> Result<Option<TokenId>, CheckpointError> {
    let id = token(gguf, key)?;
    match id.filter(|&id| id as usize >= num_tokens) {
        None => Ok(id),
        Some(id) => {
            Err(gguf.fail(format!("{key} is {id}; the vocabulary has {num_tokens} tokens")))
        }
    }
}

fn text<'a>(gguf: &Gguf<'a>, key: &str) -> Result<Option<&'a str>, CheckpointError> {
    match gguf.get(key) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text)),
        Some(_) => Err(gguf.fail(format!("{key} must be a string"))),
    }
}

fn flag(gguf: &Gguf<'_>, key: &str) -> Result<Option<bool>, CheckpointError> {
    match gguf.get(key) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(flag)),
        Some(_) => Err(gguf.fail(format!("{key} must be a boolean"))),
    }
}

fn array<'a>(gguf: &Gguf<'a>, key: &str) -> Result<Option<Array<'a>>, CheckpointError> {
    match gguf.get(key) {
        None => Ok(None),
        Some(Value::Array(array)) => Ok(Some(array)),
        Some(_) => Err(gguf.fail(format!("{key} must be an array"))),
    }
}

fn texts(gguf: &Gguf<'_>, key: &str) -> Result<Option<Vec<String>>, CheckpointError> {
    let Some(array) = array(gguf, key)? else { return Ok(None) };
    let Some(texts) = array.texts() else {
        return Err(gguf.fail(format!("{key} must be an array of strings")));
    };
    let texts: Vec<Option<&str>> = texts.collect();
    match texts.iter().position(Option::is_none) {
        None => Ok(Some(texts.into_iter().flatten().map(Into::into).collect())),
        Some(index) => Err(gguf.fail(format!("{key}: string {index} is not valid UTF-8"))),
    }
}

/// The elements of a number array that must have one entry a token.
fn numbers(
    gguf: &Gguf<'_>,
    key: &str,
    num_tokens: usize,
) -> Result<Option<Vec<f64>>, CheckpointError> {
    let Some(array) = array(gguf, key)? else { return Ok(None) };
    if array.len != num_tokens {
        let len = array.len;
        return Err(gguf.fail(format!("{key} has {len} entries for {num_tokens} tokens")));
    }
    let numbers = array.scalars().into_iter().flatten().map(|value| match value {
        Value::Float(value) => value,
        Value::Signed(value) => value as f64,
        Value::Unsigned(value) => value as f64,
        _ => f64::NAN,
    });
    let numbers: Vec<f64> = numbers.collect();
    if numbers.len() != num_tokens || numbers.iter().any(|number| number.is_nan()) {
        return Err(gguf.fail(format!("{key} must hold numbers")));
    }
    Ok(Some(numbers))
}

fn scores(gguf: &Gguf<'_>, num_tokens: usize) -> Result<Vec<f32>, CheckpointError> {
    let scores = numbers(gguf, "tokenizer.ggml.scores", num_tokens)?;
    scores
        .map(|scores| scores.into_iter().map(|score| score as f32).collect())
        .ok_or_else(|| gguf.fail("tokenizer.ggml.scores is absent".into()))
}

fn kinds(gguf: &Gguf<'_>, num_tokens: usize) -> Result<Vec<TokenKind>, CheckpointError> {
    let Some(numbers) = numbers(gguf, "tokenizer.ggml.token_type", num_tokens)? else {
        return Ok(vec![TokenKind::Normal; num_tokens]);
    };
    let kinds = numbers.into_iter().map(|number| match number {
        0.0 | 1.0 => Ok(TokenKind::Normal),
        2.0 => Ok(TokenKind::Unknown),
        3.0 => Ok(TokenKind::Control),
        4.0 => Ok(TokenKind::UserDefined),
        5.0 => Ok(TokenKind::Unused),
        6.0 => Ok(TokenKind::Byte),
        other => Err(gguf.fail(format!(
            "tokenizer.ggml.token_type holds {}; known are 0 to 6",
            quote(&other.to_string())
        ))),
    });
    kinds.collect()
}
