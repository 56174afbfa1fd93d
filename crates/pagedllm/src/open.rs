//! From options to a running [`Llm`].

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagedllm_checkpoint::{Checkpoint, CheckpointFormat};
use pagedllm_engine::EngineConfig;
use pagedllm_executor::{ExecutorOptions, LoadProgress, OpenError};
use pagedllm_tokenizer::{ChatTemplate, Tokenizer};

use crate::llm::{Llm, ModelDescription, Parts};
use crate::{Error, LoadFormat, Options, SchedulingPolicy};

fn wrong(option: &str, message: impl ToString) -> Error {
    Error::Option { option: option.to_owned(), message: message.to_string() }
}

impl Llm {
    /// Opens a model. `progress` is told after each tensor, and stops the load by returning
    /// false.
    ///
    /// # Errors
    /// An option that can't be met, or files that are wrong.
    pub fn open(
        options: &Options,
        progress: &mut dyn FnMut(LoadProgress) -> bool,
    ) -> Result<Self, Error> {
        let start = Instant::now();
        if options.model.as_os_str().is_empty() {
            return Err(wrong("model", "no model is given"));
        }
        let checkpoint = match options.load_format {
            LoadFormat::Auto => Checkpoint::open(&options.model),
            LoadFormat::Dummy => Checkpoint::open_dummy(&options.model),
        }
        .map_err(|error| Error::Model(error.to_string()))?;
        check_quantization(options, &checkpoint)?;
        let files_time = start.elapsed();

        let start = Instant::now();
        let tokenizer = if options.skip_tokenizer_init {
            None
        } else {
            Some(open_tokenizer(options, &checkpoint)?)
        };
        let chat_template = match (&options.chat_template, &tokenizer) {
            (Some(path), Some(tokenizer)) => Some(read_template(path, tokenizer)?),
            (Some(_), None) => {
                return Err(wrong("chat-template", "needs a tokenizer; drop skip-tokenizer-init"));
            }
            (None, _) => None,
        };
        let tokenizer_time = start.elapsed();

        let opened = pagedllm_executor::open(&checkpoint, &executor_options(options), progress)
            .map_err(open_error)?;
        let config = checkpoint.config();
        let mut eos_token_ids = config.eos_token_ids.clone();
        if let Some(vocab) = checkpoint.vocab_spec() {
            eos_token_ids.extend(vocab.eos.iter().chain(&vocab.other_ends));
        }
        eos_token_ids.extend(tokenizer.as_ref().and_then(Tokenizer::eos));
        eos_token_ids.retain(|&token| (token as usize) < config.vocab_size);
        eos_token_ids.sort_unstable();
        eos_token_ids.dedup();
        let description = ModelDescription {
            model: options.model.display().to_string(),
            architecture: config.architecture.clone(),
            format: Some(checkpoint.format()),
            weight_bytes: opened.weight_bytes,
            device: opened.device,
            block_bytes: opened.block_bytes,
            default_sampling: config.sampling.clone(),
            load_times: [("files", files_time), ("tokenizer", tokenizer_time)]
                .into_iter()
                .chain(opened.times)
                .collect(),
            ..ModelDescription::unnamed(eos_token_ids)
        };
        let parts = Parts {
            executor: opened.executor,
            tokenizer,
            chat_template,
            isolate_special_tokens: options.isolate_special_tokens,
            engine: engine_config(options),
            description,
        };
        Ok(Self::start(parts, opened.monitor))
    }
}

fn check_quantization(options: &Options, checkpoint: &Checkpoint) -> Result<(), Error> {
    match options.quantization.as_deref() {
        None => Ok(()),
        Some("gguf") if checkpoint.format() == CheckpointFormat::Gguf => Ok(()),
        Some("gguf") => Err(wrong("quantization", "gguf is asked for, but the model is no GGUF")),
        Some(other) => Err(wrong(
            "quantization",
            format!("{other} weights can't be loaded yet; gguf and unquantized weights can"),
        )),
    }
}

fn open_tokenizer(options: &Options, checkpoint: &Checkpoint) -> Result<Tokenizer, Error> {
    let failed = |error: pagedllm_tokenizer::TokenizerError| wrong("tokenizer", error);
    if let Some(path) = &options.tokenizer {
        let (tokenizer, config) = if path.is_dir() {
            (path.join("tokenizer.json"), path.join("tokenizer_config.json"))
        } else {
            (path.clone(), path.with_file_name("tokenizer_config.json"))
        };
        return Tokenizer::from_files(&tokenizer, existing(&config)).map_err(failed);
    }
    let files = checkpoint.tokenizer_files();
    if let Some(tokenizer) = &files.tokenizer {
        return Tokenizer::from_files(tokenizer, files.tokenizer_config.as_deref()).map_err(failed);
    }
    match checkpoint.vocab_spec() {
        Some(vocab) => Tokenizer::from_vocab(vocab).map_err(failed),
        None => Err(wrong(
            "tokenizer",
            "the model brings none; name a tokenizer.json, or use skip-tokenizer-init",
        )),
    }
}

fn existing(path: &Path) -> Option<&Path> {
    path.is_file().then_some(path)
}

fn read_template(path: &PathBuf, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
    let source = std::fs::read_to_string(path)
        .map_err(|error| wrong("chat-template", format!("{}: {error}", path.display())))?;
    ChatTemplate::compile(&source, tokenizer.special_tokens())
        .map_err(|error| wrong("chat-template", error))
}

fn executor_options(options: &Options) -> ExecutorOptions {
    ExecutorOptions {
        device: options.device,
        dtype: options.dtype,
        kv_cache_dtype: options.kv_cache_dtype,
        max_model_len: options.max_model_len,
        max_num_seqs: options.max_num_seqs,
        max_num_batched_tokens: options.max_num_batched_tokens,
        block_size: options.block_size,
        gpu_memory_utilization: options.gpu_memory_utilization,
        kv_cache_memory_bytes: options.kv_cache_memory_bytes,
        enforce_eager: options.enforce_eager,
        threads: options.threads,
        tensor_parallel_size: options.tensor_parallel_size,
    }
}

fn engine_config(options: &Options) -> EngineConfig {
    let stall = u64::from(options.max_decode_stall_ms);
    EngineConfig {
        max_num_queued: options.max_num_queued_reqs,
        max_decode_stall: (stall > 0).then(|| Duration::from_millis(stall)),
        prefix_caching: options.enable_prefix_caching,
        sorts_by_priority: options.scheduling_policy == SchedulingPolicy::Priority,
        seed: options.seed,
        dispatch: tracing::dispatcher::get_default(Clone::clone),
        ..EngineConfig::default()
    }
}

fn open_error(error: OpenError) -> Error {
    match error {
        OpenError::Option { option, message } => wrong(option, message),
        OpenError::Context(error) => wrong("max-model-len", error),
        OpenError::Load(error) => Error::Model(error.to_string()),
        OpenError::Device(error) => Error::Model(error.to_string()),
    }
}
