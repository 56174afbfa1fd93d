//! A model that answers.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use pagedllm_checkpoint::{CheckpointFormat, SamplingDefaults};
use pagedllm_core::{SamplingParams, TokenId};
use pagedllm_engine::{
    Engine, EngineConfig, EngineHandle, EngineStats, EventSender, Executor, Health, Refused,
    Rejected, Request, Shutdown, event_channel,
};
use pagedllm_executor::{GpuMonitor, GpuStats};
use pagedllm_tokenizer::{
    ChatInput, ChatTemplate, EncodeOptions, StopMatcher, TemplateError, Tokenizer, TokenizerError,
};

use crate::Error;
use crate::isolate;
use crate::request::{ChatPrompt, Prompt, TextRequest};
use crate::stream::{StreamQueue, TextStream};
use crate::text_thread::{self, Registry, Transcript, TranscriptParts};

/// An engine with its model and tokenizer. Clones are the same engine; it shuts down when the
/// last one is dropped.
#[derive(Clone)]
pub struct Llm(Arc<Inner>);

struct Inner {
    engine: EngineHandle,
    /// `None` only while the engine is being dropped.
    events: Option<EventSender>,
    registry: Arc<Registry>,
    tokenizer: Option<Tokenizer>,
    chat_template: Option<Result<ChatTemplate, TemplateError>>,
    /// Spellings that are plain text inside message content; empty where they are tokens.
    isolated: Vec<String>,
    description: ModelDescription,
    monitor: Option<GpuMonitor>,
    text_thread: Mutex<Option<JoinHandle<()>>>,
}

/// What was loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDescription {
    /// Path or name, as given.
    pub model: String,
    /// Class name of the architecture.
    pub architecture: String,
    /// Kind of the weight files; `None` for a model that was not opened from files.
    pub format: Option<CheckpointFormat>,
    /// Bytes of the weights as stored.
    pub weight_bytes: u64,
    /// The device in words.
    pub device: String,
    /// Longest sequence.
    pub max_model_len: usize,
    /// Width of the logits.
    pub vocab_size: usize,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<TokenId>,
    /// KV blocks.
    pub num_blocks: usize,
    /// Token slots in a block.
    pub block_size: usize,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Most sequences in a step.
    pub max_num_seqs: usize,
    /// Most tokens in a step.
    pub max_num_batched_tokens: usize,
    /// Whether text goes in and comes out, and not only token ids.
    pub has_tokenizer: bool,
    /// Whether conversations can be rendered.
    pub has_chat_template: bool,
    /// What the model's authors propose for requests that say nothing.
    pub default_sampling: SamplingDefaults,
    /// Parts of the start and the time that each took, in order.
    pub load_times: Vec<(&'static str, Duration)>,
}

/// What [`Llm::from_parts`] puts together.
pub struct Parts {
    /// Runs the steps.
    pub executor: Box<dyn Executor>,
    /// Text to tokens; `None` leaves token ids only.
    pub tokenizer: Option<Tokenizer>,
    /// Wins over the tokenizer's own template.
    pub chat_template: Option<ChatTemplate>,
    /// Special tokens inside message content are encoded as plain text.
    pub isolate_special_tokens: bool,
    /// Settings of the engine.
    pub engine: EngineConfig,
    /// What was loaded; the sizes are taken from the executor.
    pub description: ModelDescription,
}

impl ModelDescription {
    /// Names that the model answers to unless it is given others: that of its file (without
    /// `.gguf`) or directory, and what it was opened with.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let path = std::path::Path::new(&self.model);
        let is_file = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
        let short = if is_file { path.file_stem() } else { path.file_name() };
        let mut names = Vec::new();
        names.extend(short.map(|name| name.to_string_lossy().into_owned()));
        if !names.contains(&self.model) {
            names.push(self.model.clone());
        }
        names
    }

    /// A model without files, for an executor of one's own.
    #[must_use]
    pub fn unnamed(eos_token_ids: Vec<TokenId>) -> Self {
        Self {
            model: "model".into(),
            architecture: String::new(),
            format: None,
            weight_bytes: 0,
            device: String::new(),
            max_model_len: 0,
            vocab_size: 0,
            eos_token_ids,
            num_blocks: 0,
            block_size: 0,
            block_bytes: 0,
            max_num_seqs: 0,
            max_num_batched_tokens: 0,
            has_tokenizer: false,
            has_chat_template: false,
            default_sampling: SamplingDefaults::default(),
            load_times: Vec::new(),
        }
    }
}

impl Llm {
    /// Starts an engine on any executor.
    ///
    /// # Panics
    /// If the system can't start a thread.
    #[must_use]
    pub fn from_parts(parts: Parts) -> Self {
        Self::start(parts, None)
    }

    pub(crate) fn start(parts: Parts, monitor: Option<GpuMonitor>) -> Self {
        let Parts { executor, tokenizer, chat_template, engine: config, mut description, .. } =
            parts;
        let shape = executor.shape().clone();
        let chat_template = match (chat_template, &tokenizer) {
            (Some(template), _) => Some(Ok(template)),
            (None, Some(tokenizer)) => tokenizer.chat_template(None),
            (None, None) => None,
        };
        description.max_model_len = shape.max_model_len;
        description.vocab_size = shape.vocab_size;
        description.num_blocks = shape.num_blocks;
        description.block_size = shape.block_size;
        description.max_num_seqs = shape.max_num_seqs;
        description.max_num_batched_tokens = shape.max_num_batched_tokens;
        description.has_chat_template = chat_template.as_ref().is_some_and(Result::is_ok);
        description.has_tokenizer = tokenizer.is_some();

        let isolated = match &tokenizer {
            Some(tokenizer) if parts.isolate_special_tokens => (0..tokenizer.vocab_size())
                .map(|token| token as TokenId)
                .filter(|&token| tokenizer.is_special(token))
                .map(|token| tokenizer.token_text(token))
                .filter(|text| !text.is_empty())
                .collect(),
            _ => Vec::new(),
        };

        let dispatch = config.dispatch.clone();
        let engine = Engine::spawn(executor, config);
        let (events, receiver) = event_channel();
        let registry = Arc::new(Registry::default());
        let (for_thread, handle) = (Arc::clone(&registry), engine.clone());
        let text_thread = std::thread::Builder::new()
            .name("pagedllm-text".into())
            .spawn(move || {
                tracing::dispatcher::with_default(&dispatch, || {
                    text_thread::run(&for_thread, &handle, &receiver);
                });
            })
            .expect("the system starts threads");
        Self(Arc::new(Inner {
            engine,
            events: Some(events),
            registry,
            tokenizer,
            chat_template,
            isolated,
            description,
            monitor,
            text_thread: Mutex::new(Some(text_thread)),
        }))
    }

    /// Queues a request. Everything about it is checked first; never waits.
    ///
    /// # Errors
    /// A field that is wrong, a context that is too long, a full queue, or an engine that is
    /// going or gone.
    pub fn generate(&self, request: TextRequest) -> Result<TextStream, Error> {
        let inner = &*self.0;
        let prompt = match request.prompt {
            Prompt::TokenIds(tokens) => tokens,
            Prompt::Text { text, add_special_tokens } => self.encode(&text, add_special_tokens)?,
        };
        self.check_context(&prompt, request.sampling.max_tokens as usize)?;
        request.sampling.check(inner.description.vocab_size)?;
        self.check_allowed(&request.sampling)?;
        let stop = StopMatcher::new(&request.stop, request.include_stop_str_in_output)
            .map_err(|error| Error::Request { param: "stop", message: error.to_string() })?;
        if inner.tokenizer.is_none() && !request.stop.is_empty() {
            let message = "stop strings need a tokenizer, and none was opened".into();
            return Err(Error::Request { param: "stop", message });
        }
        let queue = Arc::new(StreamQueue::default());
        let transcript = Transcript::new(TranscriptParts {
            queue: Arc::clone(&queue),
            params: &request.sampling,
            eos_token_ids: &inner.description.eos_token_ids,
            detokenizer: inner
                .tokenizer
                .as_ref()
                .map(|tokenizer| tokenizer.detokenizer(&prompt, request.skip_special_tokens)),
            stop,
            shows_stop: request.include_stop_str_in_output,
        });
        let id = inner.engine.new_request_id();
        inner.registry.add(id, transcript);
        let submitted = inner.engine.generate(
            id,
            Request {
                priority: request.priority,
                cache_salt: request.cache_salt,
                eos_token_ids: inner.description.eos_token_ids.clone(),
                deadline: request.deadline.map(|at| at.saturating_duration_since(Instant::now())),
                ..Request::new(prompt.clone(), request.sampling)
            },
            inner.events.as_ref().expect("held until the engine is dropped"),
        );
        if let Err(rejected) = submitted {
            inner.registry.remove(id);
            return Err(rejected.into());
        }
        Ok(TextStream::new(queue, inner.engine.clone(), id, prompt))
    }

    fn check_context(&self, prompt: &[TokenId], max_tokens: usize) -> Result<(), Error> {
        let (max_model_len, vocab_size) =
            (self.0.description.max_model_len, self.0.description.vocab_size);
        if prompt.is_empty() {
            let message = "the prompt has no tokens".into();
            return Err(Error::Request { param: "prompt", message });
        }
        if let Some(token) = prompt.iter().find(|&&token| token as usize >= vocab_size) {
            let message = format!("token id {token} is outside the vocabulary of {vocab_size}");
            return Err(Error::Request { param: "prompt", message });
        }
        if prompt.len().saturating_add(max_tokens) > max_model_len {
            let prompt_tokens = prompt.len();
            return Err(Error::ContextLength { prompt_tokens, max_tokens, max_model_len });
        }
        Ok(())
    }

    /// Something must be left to draw while `min_tokens` forbids what ends an answer.
    fn check_allowed(&self, sampling: &SamplingParams) -> Result<(), Error> {
        let eos = &self.0.description.eos_token_ids;
        let ends = |token: &TokenId| {
            sampling.stop_token_ids.contains(token) || (!sampling.ignore_eos && eos.contains(token))
        };
        if sampling.min_tokens > 0
            && sampling.allowed_token_ids.as_ref().is_some_and(|allowed| allowed.iter().all(ends))
        {
            let message = format!(
                "all of them end the answer, which min_tokens = {} forbids at first",
                sampling.min_tokens
            );
            return Err(Error::Request { param: "allowed_token_ids", message });
        }
        Ok(())
    }

    fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.0.tokenizer.as_ref().ok_or_else(|| Error::Request {
            param: "prompt",
            message: "no tokenizer was opened; give token ids".into(),
        })
    }

    /// The prompt of a conversation, as the model's template writes it.
    ///
    /// # Errors
    /// The model has no template, the template refuses, or it costs too much.
    pub fn render_chat(&self, chat: &ChatPrompt) -> Result<String, Error> {
        let template = match &self.0.chat_template {
            Some(Ok(template)) => template,
            Some(Err(error)) => return Err(Error::ChatTemplate(error.to_string())),
            None => {
                let message = "the model has no chat template; give one with --chat-template";
                return Err(Error::ChatTemplate(message.into()));
            }
        };
        let input = ChatInput {
            messages: chat.messages.clone().into(),
            tools: chat.tools.clone(),
            documents: chat.documents.clone(),
            add_generation_prompt: chat.add_generation_prompt,
            continue_final_message: chat.continue_final_message,
            kwargs: chat.template_kwargs.clone(),
            now: SystemTime::now(),
        };
        template.render(&input).map_err(|error| Error::ChatTemplate(error.to_string()))
    }

    /// [`render_chat`](Self::render_chat), then its tokens.
    ///
    /// # Errors
    /// As `render_chat`, and those of the tokenizer.
    pub fn encode_chat(&self, chat: &ChatPrompt) -> Result<Vec<TokenId>, Error> {
        let add_special_tokens = chat.add_special_tokens;
        if self.0.isolated.is_empty() {
            return self.encode(&self.render_chat(chat)?, add_special_tokens);
        }
        let rendered = self.render_chat(&isolate::marked(chat, &self.0.isolated))?;
        let mut tokens = Vec::new();
        for (index, stretch) in isolate::stretches(&rendered).into_iter().enumerate() {
            let options = EncodeOptions {
                add_special_tokens: add_special_tokens && index == 0,
                isolate_special_tokens: stretch.is_plain,
            };
            tokens.extend(self.encode_with(stretch.text, options)?);
        }
        Ok(tokens)
    }

    /// Tokens of a text.
    ///
    /// # Errors
    /// There is no tokenizer, or the text is too long for it.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, Error> {
        self.encode_with(text, EncodeOptions { add_special_tokens, isolate_special_tokens: false })
    }

    fn encode_with(&self, text: &str, options: EncodeOptions) -> Result<Vec<TokenId>, Error> {
        self.tokenizer()?.encode(text, options).map_err(|error: TokenizerError| Error::Request {
            param: "prompt",
            message: error.to_string(),
        })
    }

    /// Text of tokens.
    ///
    /// # Errors
    /// There is no tokenizer.
    pub fn decode(&self, tokens: &[TokenId], skip_special_tokens: bool) -> Result<String, Error> {
        Ok(self.tokenizer()?.decode(tokens, skip_special_tokens))
    }

    /// Bytes of one token on its own; empty without a tokenizer.
    #[must_use]
    pub fn token_bytes(&self, token: TokenId) -> Vec<u8> {
        self.0.tokenizer.as_ref().map_or_else(Vec::new, |tokenizer| tokenizer.token_bytes(token))
    }

    /// Spelling of one token in the vocabulary; empty without a tokenizer.
    #[must_use]
    pub fn token_text(&self, token: TokenId) -> String {
        self.0.tokenizer.as_ref().map_or_else(String::new, |tokenizer| tokenizer.token_text(token))
    }

    /// What was loaded.
    #[must_use]
    pub fn description(&self) -> &ModelDescription {
        &self.0.description
    }

    /// A copy of all counters.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.0.engine.stats()
    }

    /// A look at the GPU, where the model runs on one that can be looked at. Asks the driver.
    #[must_use]
    pub fn gpu_stats(&self) -> Option<GpuStats> {
        self.0.monitor.as_ref().map(|read| read())
    }

    /// Whether the engine can serve.
    ///
    /// # Errors
    /// It is shutting down, or the device failed.
    pub fn health(&self) -> Result<(), Error> {
        match self.0.engine.health() {
            Health::Ready => Ok(()),
            Health::ShuttingDown => Err(Error::ShuttingDown),
            Health::Failed(error) => Err(Error::Device(error.to_string())),
        }
    }

    /// Takes no more requests, waits at most `timeout` for those that run, ends the rest.
    pub fn shutdown(&self, timeout: Duration) {
        let mode = if timeout.is_zero() { Shutdown::Now } else { Shutdown::Drain { timeout } };
        self.0.engine.shutdown(mode);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.engine.shutdown(Shutdown::Now);
        self.events = None;
        let thread = self.text_thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread catches its panics and tells them to the stream concerned.
            let _ = thread.join();
        }
    }
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::QueueFull { max_num_queued, retry_after_ms } => Self::QueueFull {
                limit: max_num_queued,
                retry_after: Duration::from_millis(retry_after_ms),
            },
            Rejected::ShuttingDown => Self::ShuttingDown,
            Rejected::Failed(error) => Self::Device(error.to_string()),
            Rejected::Refused(Refused::Params(invalid)) => Self::Sampling(invalid),
            Rejected::Refused(refused) => {
                let param = match refused {
                    Refused::TooManyChoices { .. } => "best_of",
                    _ => "prompt",
                };
                Self::Request { param, message: refused.to_string() }
            }
        }
    }
}
