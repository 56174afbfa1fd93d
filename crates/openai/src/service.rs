//! The endpoints, over one model.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use pagedllm::{EngineStats, Error, Llm};
use serde_json::{Value, json};

use crate::answer::{Answer, AnswerBody, PlainAnswer, StreamAnswer};
use crate::call::Call;
use crate::fields::{Fields, parse};
use crate::fold::Fold;
use crate::format::Format;
use crate::logprobs::Names;
use crate::{ApiError, chat, completions, tokenize};

/// How the protocol behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOptions {
    /// Names that requests may use; the first is the model's. Empty means the model's own name.
    pub served_model_names: Vec<String>,
    /// Whether an unknown field is an error; else it is reported.
    pub strict_params: bool,
    /// Most alternatives a token that log-probabilities may list.
    pub max_logprobs: u32,
    /// Role of chat answers.
    pub response_role: String,
    /// Whether log-probabilities name tokens `token_id:N`, unless a request says otherwise.
    pub return_tokens_as_token_ids: bool,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            served_model_names: Vec::new(),
            strict_params: false,
            max_logprobs: 20,
            response_role: "assistant".into(),
            return_tokens_as_token_ids: false,
        }
    }
}

/// An endpoint that takes a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/tokenize`
    Tokenize,
    /// `/detokenize`
    Detokenize,
}

/// Who asks, as far as the transport knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Keeps the cached prefixes of tenants apart, unless a request brings its own salt.
    pub salt: Vec<u8>,
    /// The client's id of the request; becomes part of the answer's id.
    pub request_id: Option<String>,
}

/// One model behind OpenAI's endpoints. Clones share it.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    llm: Llm,
    options: ServiceOptions,
    created: u64,
    entropy: RandomState,
    next_id: AtomicU64,
}

impl Service {
    /// Serves a model.
    #[must_use]
    pub fn new(llm: Llm, mut options: ServiceOptions) -> Self {
        options.served_model_names.retain(|name| !name.is_empty());
        if options.served_model_names.is_empty() {
            options.served_model_names = llm.description().names();
        }
        let (entropy, next_id) = (RandomState::new(), AtomicU64::new(0));
        Self(Arc::new(Inner { llm, options, created: now(), entropy, next_id }))
    }

    /// The model.
    #[must_use]
    pub fn llm(&self) -> &Llm {
        &self.0.llm
    }

    pub(crate) fn options(&self) -> &ServiceOptions {
        &self.0.options
    }

    /// Counters of the engine.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.0.llm.stats()
    }

    /// The names that requests may use, the model's first; never empty.
    #[must_use]
    pub fn model_names(&self) -> &[String] {
        &self.0.options.served_model_names
    }

    /// Answers a body. Everything is checked and encoded before anything is queued, which takes
    /// as long as tokenizing does; nothing here waits for the engine.
    ///
    /// # Errors
    /// The request is wrong, or the engine takes no more.
    pub fn complete(
        &self,
        endpoint: Endpoint,
        body: &[u8],
        caller: &Caller,
    ) -> Result<Answer, ApiError> {
        let Inner { llm, options, .. } = &*self.0;
        llm.health().map_err(|error| ApiError::from_facade(error, "prompt"))?;
        let mut fields = parse(body)?;
        let model = self.model(&mut fields)?;
        let ready = |(body, ignored_params): (Value, Vec<String>)| Answer {
            id: None,
            ignored_params,
            body: AnswerBody::Ready(body.to_string()),
        };
        match endpoint {
            Endpoint::Tokenize => tokenize::tokenize(llm, options, fields).map(ready),
            Endpoint::Detokenize => tokenize::detokenize(llm, options, fields).map(ready),
            Endpoint::Completions => {
                self.start(completions::read(llm, options, fields)?, "cmpl", model, caller)
            }
            Endpoint::ChatCompletions => {
                self.start(chat::read(llm, options, fields)?, "chatcmpl", model, caller)
            }
        }
    }

    fn start(
        &self,
        mut call: Call,
        prefix: &str,
        model: String,
        caller: &Caller,
    ) -> Result<Answer, ApiError> {
        let Inner { llm, .. } = &*self.0;
        let first = &call.requests[0];
        let choices_per_prompt = first.sampling.n as usize;
        let eos = &llm.description().eos_token_ids;
        let named = &first.sampling.stop_token_ids;
        let silent_stops = eos.iter().copied().filter(|token| !named.contains(token)).collect();
        let stop = first.stop.clone();
        let request_id = call.request_id.take().or_else(|| caller.request_id.clone());
        let id = format!("{prefix}-{}", request_id.unwrap_or_else(|| self.new_id()));
        let merged = call.start(llm, &salt(call.cache_salt.as_deref(), caller))?;
        let is_textless = !llm.description().has_tokenizer;
        let fold = Fold::new(merged.prompts.clone(), choices_per_prompt, is_textless);
        let format = Format {
            id: id.clone(),
            created: now(),
            model,
            names: Names { llm: llm.clone(), tokens_as_ids: call.tokens_as_ids },
            return_token_ids: call.return_token_ids,
            shows_prompt_logprobs: call.shows_prompt_logprobs,
            stop,
            silent_stops,
            shape: call.shape,
        };
        let body = match call.streaming.is_on {
            true => AnswerBody::Stream(Box::new(StreamAnswer::new(
                merged,
                fold,
                format,
                call.streaming,
            ))),
            false => AnswerBody::Plain(Box::new(PlainAnswer::new(merged, fold, format))),
        };
        Ok(Answer { id: Some(id), ignored_params: call.ignored_params, body })
    }

    /// The name under which the request wants to be answered.
    fn model(&self, fields: &mut Fields) -> Result<String, ApiError> {
        let names = self.model_names();
        match fields.text("model")? {
            None => Ok(names[0].clone()),
            Some(name) if names.contains(&name) => Ok(name),
            Some(name) => Err(ApiError::model_not_found(&name)),
        }
    }

    /// The body of `/v1/models`.
    #[must_use]
    pub fn models(&self) -> Value {
        let models: Vec<Value> = self.model_names().iter().map(|name| self.card(name)).collect();
        json!({"object": "list", "data": models})
    }

    /// The body of `/v1/models/{name}`.
    ///
    /// # Errors
    /// There is no such model.
    pub fn model_card(&self, name: &str) -> Result<Value, ApiError> {
        match self.model_names().iter().any(|known| known == name) {
            true => Ok(self.card(name)),
            false => Err(ApiError::model_not_found(name)),
        }
    }

    fn card(&self, name: &str) -> Value {
        json!({
            "id": name,
            "object": "model",
            "created": self.0.created,
            "owned_by": "pagedllm",
            "root": self.model_names()[0],
            "parent": null,
            "max_model_len": self.0.llm.description().max_model_len,
        })
    }

    /// Whether the engine can serve.
    ///
    /// # Errors
    /// Why it can't.
    pub fn health(&self) -> Result<(), Error> {
        self.0.llm.health()
    }

    /// A new id, unlike any other of this or another process.
    #[must_use]
    pub fn new_id(&self) -> String {
        let number = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let half = |part: u8| {
            let mut hasher = self.0.entropy.build_hasher();
            hasher.write_u8(part);
            hasher.write_u64(number);
            hasher.finish()
        };
        format!("{:016x}{:016x}", half(0), half(1))
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("options", &self.0.options).finish_non_exhaustive()
    }
}

/// What cached prefixes are shared under: the request's own salt, or else the caller's. The two
/// kinds never meet.
pub(crate) fn salt(own: Option<&str>, caller: &Caller) -> Vec<u8> {
    match own {
        Some(salt) => [b"request:", salt.as_bytes()].concat(),
        None => [b"caller:", &caller.salt[..]].concat(),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
