//! Engines without a model, in builds with the feature `test-executor` only: a model that is named
//! `test-executor:FOLDER` is the tokenizer of that folder, and steps that take no time. For
//! measuring what lies above the executor, from any language. No library that is shipped has it.

use std::path::Path;

use pagedllm::{EngineConfig, ExecutorShape, Llm, ModelDescription, Options, Parts, Tokenizer};
use pagedllm_sim::instant::InstantExecutor;
use pagedllm_sim::options::shape;

use crate::error::Failure;
use crate::status::PAGEDLLM_MODEL_ERROR;

/// Begins the name of such a model.
const PREFIX: &str = "test-executor:";
const BLOCK_SIZE: usize = 16;
const DEFAULT_MAX_MODEL_LEN: usize = 1024;

/// Opens such an engine, if the model's name asks for one. It says the printable tokens.
pub(crate) fn open(options: &Options) -> Result<Option<Llm>, Failure> {
    let Some(folder) = options.model.to_str().and_then(|model| model.strip_prefix(PREFIX)) else {
        return Ok(None);
    };
    let wrong = |message: String| Failure::new(PAGEDLLM_MODEL_ERROR, message);
    let (file, config) =
        (Path::new(folder).join("tokenizer.json"), Path::new(folder).join("tokenizer_config.json"));
    let tokenizer = Tokenizer::from_files(&file, config.is_file().then_some(&*config))
        .map_err(|error| wrong(error.to_string()))?;
    let is_printable = |token: &u32| {
        let text = tokenizer.token_text(*token);
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let tokens: Vec<u32> = (0..tokenizer.vocab_size() as u32).filter(is_printable).collect();
    if tokens.is_empty() {
        return Err(wrong("the tokenizer has no printable token".into()));
    }
    let executor = InstantExecutor::new(sizes(options, tokenizer.vocab_size()), tokens);
    Ok(Some(Llm::from_parts(Parts {
        executor: Box::new(executor),
        tokenizer: Some(tokenizer),
        chat_template: None,
        isolate_special_tokens: options.isolate_special_tokens,
        engine: EngineConfig {
            max_num_queued: options.max_num_queued_reqs,
            prefix_caching: options.enable_prefix_caching,
            dispatch: tracing::dispatcher::get_default(Clone::clone),
            ..EngineConfig::default()
        },
        description: ModelDescription {
            model: folder.to_owned(),
            ..ModelDescription::unnamed(Vec::new())
        },
    })))
}

/// Room for every sequence at its longest, so that nothing waits for blocks.
fn sizes(options: &Options, vocab_size: usize) -> ExecutorShape {
    let max_model_len = options.max_model_len.unwrap_or(DEFAULT_MAX_MODEL_LEN);
    let num_blocks = options.max_num_seqs * (max_model_len.div_ceil(BLOCK_SIZE) + 1);
    ExecutorShape {
        max_model_len,
        max_num_seqs: options.max_num_seqs,
        max_logit_rows: options.max_num_seqs,
        max_num_batched_tokens: options.max_num_batched_tokens.max(options.max_num_seqs),
        max_steps_in_flight: 1,
        ..shape(&[None], BLOCK_SIZE, num_blocks, vocab_size)
    }
}
