//! Text, tokens, templates and what is known about an engine.

use std::ffi::c_char;

use pagedllm::{EngineStats, ModelDescription};
use serde_json::{Value, json};

use crate::caller::{Caller, free_record};
use crate::engine::{Engine, EngineObject};
use crate::error::{Error, Failure};
use crate::panic::guard;
use crate::record::{self, Public, with_nul};
use crate::status::{PAGEDLLM_INVALID_ARGUMENT, PAGEDLLM_OK, Status};

/// A text that the library made, freed with pagedllm_text_free. A NUL follows its bytes.
#[repr(C)]
pub struct Text {
    /// UTF-8.
    pub data: *const c_char,
    /// Bytes of data.
    pub len: usize,
}

impl Public for Text {
    type Backing = Vec<u8>;
    const MAGIC: u64 = u64::from_le_bytes(*b"plm_text");
}

/// Token ids that the library made, freed with pagedllm_tokens_free.
#[repr(C)]
pub struct Tokens {
    /// The ids.
    pub data: *const u32,
    /// How many.
    pub len: usize,
}

impl Public for Tokens {
    type Backing = Vec<u32>;
    const MAGIC: u64 = u64::from_le_bytes(*b"plm_tokn");
}

/// Metrics as Prometheus' text format.
pub const PAGEDLLM_METRICS_PROMETHEUS: u32 = 1;
/// Metrics as a JSON object of the most used counters.
pub const PAGEDLLM_METRICS_JSON: u32 = 2;

pub(crate) fn text_record(text: String) -> *const Text {
    record::new(with_nul(text), |bytes: &Vec<u8>| Text {
        data: bytes.as_ptr().cast(),
        len: bytes.len() - 1,
    })
}

/// Runs an export that makes a text of an engine.
///
/// # Safety
/// The arguments are what the header asks for.
unsafe fn text_of(
    engine: *const Engine,
    out: *mut *const Text,
    error: *mut *const Error,
    make: impl FnOnce(&Caller, &EngineObject) -> Result<String, Failure>,
) -> Status {
    // SAFETY: as for this function.
    guard(unsafe { Caller::new(error) }, |caller| {
        let engine = caller.enter(engine, "engine")?;
        let out = caller.out(out, "out")?;
        out.set(text_record(make(caller, &engine)?));
        Ok(PAGEDLLM_OK)
    })
}

/// Frees a text. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_text_free(text: *const Text) {
    free_record(text);
}

/// Frees token ids. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_tokens_free(tokens: *const Tokens) {
    free_record(tokens);
}

/// Token ids of a text. add_special_tokens other than 0 adds what the model wants before a
/// prompt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_tokenize(
    engine: *const Engine,
    text: *const c_char,
    text_len: usize,
    add_special_tokens: u32,
    out: *mut *const Tokens,
    error: *mut *const Error,
) -> Status {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(error) }, |caller| {
        let engine = caller.enter(engine, "engine")?;
        let out = caller.out(out, "out")?;
        let text = caller.text(text, text_len, "text")?;
        let tokens = engine.llm().encode(text, add_special_tokens != 0)?;
        out.set(record::new(tokens, |tokens: &Vec<u32>| Tokens {
            data: tokens.as_ptr(),
            len: tokens.len(),
        }));
        Ok(PAGEDLLM_OK)
    })
}

/// Text of token ids. skip_special_tokens other than 0 leaves out the model's markers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_detokenize(
    engine: *const Engine,
    tokens: *const u32,
    tokens_len: usize,
    skip_special_tokens: u32,
    out: *mut *const Text,
    error: *mut *const Error,
) -> Status {
    let make = |caller: &Caller, engine: &EngineObject| {
        let tokens = caller.slice(tokens, tokens_len, "tokens")?;
        let vocab_size = engine.llm().description().vocab_size;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            let message = format!("token id {token} is outside the vocabulary of {vocab_size}");
            return Err(Failure::new(PAGEDLLM_INVALID_ARGUMENT, message).about("tokens"));
        }
        Ok(engine.llm().decode(tokens, skip_special_tokens != 0)?)
    };
    // SAFETY: the arguments are what the header asks for.
    unsafe { text_of(engine, out, error, make) }
}

/// The prompt of a conversation (JSON, as in pagedllm_request), as the model's template writes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_render_chat(
    engine: *const Engine,
    chat: *const c_char,
    chat_len: usize,
    out: *mut *const Text,
    error: *mut *const Error,
) -> Status {
    let make = |caller: &Caller, engine: &EngineObject| {
        Ok(engine.service.render_chat(caller.text(chat, chat_len, "chat")?)?)
    };
    // SAFETY: the arguments are what the header asks for.
    unsafe { text_of(engine, out, error, make) }
}

/// What was loaded, as a JSON object; names may be added to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_engine_info(
    engine: *const Engine,
    out: *mut *const Text,
    error: *mut *const Error,
) -> Status {
    let make = |_: &Caller, engine: &EngineObject| {
        Ok(described(engine.llm().description(), engine.service.model_names()).to_string())
    };
    // SAFETY: the arguments are what the header asks for.
    unsafe { text_of(engine, out, error, make) }
}

fn described(model: &ModelDescription, names: &[String]) -> Value {
    json!({
        "names": names,
        "architecture": model.architecture,
        "device": model.device,
        "weight_bytes": model.weight_bytes,
        "max_model_len": model.max_model_len,
        "vocab_size": model.vocab_size,
        "eos_token_ids": model.eos_token_ids,
        "num_blocks": model.num_blocks,
        "block_size": model.block_size,
        "block_bytes": model.block_bytes,
        "max_num_seqs": model.max_num_seqs,
        "max_num_batched_tokens": model.max_num_batched_tokens,
        "has_chat_template": model.has_chat_template,
    })
}

/// Counters of the engine at this moment, in a format (PAGEDLLM_METRICS_*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_engine_metrics(
    engine: *const Engine,
    format: u32,
    out: *mut *const Text,
    error: *mut *const Error,
) -> Status {
    let make = |_: &Caller, engine: &EngineObject| match format {
        PAGEDLLM_METRICS_PROMETHEUS => Ok(pagedllm_server::engine_metrics(&engine.service)),
        PAGEDLLM_METRICS_JSON => Ok(counted(&engine.service.stats()).to_string()),
        other => {
            let message = format!("format {other} is unknown");
            Err(Failure::new(PAGEDLLM_INVALID_ARGUMENT, message).about("format"))
        }
    };
    // SAFETY: the arguments are what the header asks for.
    unsafe { text_of(engine, out, error, make) }
}

fn counted(stats: &EngineStats) -> Value {
    json!({
        "num_running": stats.num_running,
        "num_waiting": stats.num_waiting,
        "num_blocks": stats.num_blocks,
        "num_blocks_used": stats.num_blocks_used,
        "num_blocks_cached": stats.num_blocks_cached,
        "prompt_tokens_total": stats.prompt_tokens_total,
        "prompt_tokens_cached_total": stats.prompt_tokens_cached_total,
        "generation_tokens_total": stats.generation_tokens_total,
        "preemptions_total": stats.preemptions_total,
        "steps_total": stats.steps_total,
        "finished_total": {
            "stop": stats.finished_total.stop,
            "length": stats.finished_total.length,
            "abort": stats.finished_total.abort,
            "error": stats.finished_total.error,
        },
        "rejected_queue_full_total": stats.rejected_queue_full_total,
    })
}
