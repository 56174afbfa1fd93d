//! Fields that completions and chat share: how to sample, when to stop, how to stream.

use pagedllm::{ModelDescription, SamplingParams, TextRequest};
use serde_json::Value;

use crate::fields::{Fields, integer};
use crate::{ApiError, ServiceOptions};

/// Most stop strings of a request.
const MAX_STOPS: usize = 64;
/// Longest stop string, in bytes.
const MAX_STOP_BYTES: usize = 4096;
/// Longest `cache_salt` and `request_id`, in bytes.
const MAX_WORD_BYTES: usize = 256;
/// Most entries of a list of token ids.
const MAX_TOKEN_LIST: usize = 4096;

/// Fields that would change the answer and that this build can't honour.
const NOT_BUILT: [(&str, &str); 14] = [
    ("structured_outputs", "structured outputs are not built yet"),
    ("guided_json", "structured outputs are not built yet"),
    ("guided_regex", "structured outputs are not built yet"),
    ("guided_choice", "structured outputs are not built yet"),
    ("guided_grammar", "structured outputs are not built yet"),
    ("regex", "structured outputs are not built yet"),
    ("use_beam_search", "beam search is not built"),
    ("prompt_embeds", "prompt embeddings are not built"),
    ("bad_words", "bad_words is not built; use logit_bias"),
    ("logits_processors", "code of a request is never run"),
    ("logprob_token_ids", "logprob_token_ids is not built"),
    ("thinking_token_budget", "thinking_token_budget is not built"),
    ("functions", "functions is retired; use tools"),
    ("function_call", "function_call is retired; use tool_choice"),
];

/// Fields that are known and have no effect on the answer.
const WITHOUT_EFFECT: [&str; 5] =
    ["user", "safety_identifier", "session_id", "prompt_cache_key", "service_tier"];

/// What the shared fields say.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) sampling: SamplingParams,
    pub(crate) stop: Vec<String>,
    pub(crate) include_stop_str_in_output: bool,
    pub(crate) skip_special_tokens: bool,
    pub(crate) priority: i32,
    pub(crate) cache_salt: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) truncation: Option<Truncation>,
    pub(crate) streaming: Streaming,
    pub(crate) return_token_ids: bool,
    pub(crate) tokens_as_ids: bool,
}

/// How the answer is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streaming {
    pub(crate) is_on: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
}

/// Which part of a long prompt is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truncation {
    /// Tokens to keep; `None` keeps what fits the model.
    pub(crate) length: Option<usize>,
    pub(crate) keeps_the_start: bool,
}

impl Common {
    /// Reads everything but what the endpoint has to say about `max_tokens` and log-probabilities.
    pub(crate) fn read(
        fields: &mut Fields,
        model: &ModelDescription,
        options: &ServiceOptions,
    ) -> Result<Self, ApiError> {
        for (name, why) in NOT_BUILT {
            fields.refuse(name, why)?;
        }
        for name in WITHOUT_EFFECT {
            fields.take(name);
        }
        response_format(fields)?;
        let common = Self {
            sampling: sampling(fields, model, options)?,
            stop: stop(fields)?,
            include_stop_str_in_output: fields.flag("include_stop_str_in_output")?.unwrap_or(false),
            skip_special_tokens: fields.flag("skip_special_tokens")?.unwrap_or(true),
            priority: fields
                .integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?
                .map_or(0, |priority| priority as i32),
            cache_salt: word(fields, "cache_salt")?,
            request_id: request_id(fields)?,
            truncation: truncation(fields)?,
            streaming: streaming(fields)?,
            return_token_ids: fields.flag("return_token_ids")?.unwrap_or(false),
            tokens_as_ids: fields
                .flag("return_tokens_as_token_ids")?
                .unwrap_or(options.return_tokens_as_token_ids),
        };
        common.check()?;
        Ok(common)
    }

    /// Fields that don't go together.
    fn check(&self) -> Result<(), ApiError> {
        let (best_of, n) = (self.sampling.best_of, self.sampling.n);
        if best_of < n {
            return Err(ApiError::invalid("best_of", format!("{best_of} is less than n = {n}")));
        }
        if self.streaming.is_on && best_of != n {
            let message = format!("{best_of} is more than n = {n}, which can't be streamed");
            return Err(ApiError::invalid("best_of", message));
        }
        if self.streaming.is_on && self.sampling.prompt_logprobs.is_some() {
            return Err(ApiError::invalid("prompt_logprobs", "is not available with stream: true"));
        }
        Ok(())
    }

    /// The facade's request for a prompt of this call.
    pub(crate) fn request(&self, prompt: pagedllm::Prompt, max_tokens: u32) -> TextRequest {
        let sampling = SamplingParams { max_tokens, ..self.sampling.clone() };
        TextRequest {
            sampling,
            stop: self.stop.clone(),
            include_stop_str_in_output: self.include_stop_str_in_output,
            skip_special_tokens: self.skip_special_tokens,
            priority: self.priority,
            ..TextRequest::new(prompt)
        }
    }
}

fn sampling(
    fields: &mut Fields,
    model: &ModelDescription,
    options: &ServiceOptions,
) -> Result<SamplingParams, ApiError> {
    let given = &model.default_sampling;
    let base = SamplingParams::default();
    let any_count = 0..=i64::from(u32::MAX);
    let n = fields.integer("n", 1..=i64::from(u32::MAX))?.map_or(1, |n| n as u32);
    let best_of = fields.integer("best_of", 1..=i64::from(u32::MAX))?.map_or(n, |n| n as u32);
    let prompt_logprobs = prompt_logprobs(fields, options)?;
    Ok(SamplingParams {
        temperature: fields
            .number("temperature")?
            .or(given.temperature)
            .unwrap_or(base.temperature),
        top_k: top_k(fields, model.vocab_size)?.or(given.top_k).unwrap_or(base.top_k),
        top_p: fields.number("top_p")?.or(given.top_p).unwrap_or(base.top_p),
        min_p: fields.number("min_p")?.or(given.min_p).unwrap_or(base.min_p),
        repetition_penalty: fields
            .number("repetition_penalty")?
            .or(given.repetition_penalty)
            .unwrap_or(base.repetition_penalty),
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(base.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(base.frequency_penalty),
        logit_bias: logit_bias(fields)?,
        allowed_token_ids: token_list(fields, "allowed_token_ids")?,
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?,
        min_tokens: fields.integer("min_tokens", any_count)?.map_or(0, |count| count as u32),
        stop_token_ids: token_list(fields, "stop_token_ids")?.unwrap_or_default(),
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        n,
        best_of,
        prompt_logprobs,
        ..base
    })
}

/// 0 and -1 keep all tokens, and so does anything from the vocabulary's size on.
fn top_k(fields: &mut Fields, vocab_size: usize) -> Result<Option<u32>, ApiError> {
    let top_k = fields.integer("top_k", -1..=i64::MAX)?;
    Ok(top_k.map(|top_k| match usize::try_from(top_k) {
        Ok(count) if count < vocab_size => count as u32,
        _ => 0,
    }))
}

fn prompt_logprobs(fields: &mut Fields, options: &ServiceOptions) -> Result<Option<u32>, ApiError> {
    let count = fields.integer("prompt_logprobs", 0..=i64::from(options.max_logprobs))?;
    Ok(count.map(|count| count as u32))
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = |message: String| Err(ApiError::invalid("logit_bias", message));
    let map = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return wrong("must be an object from token ids to numbers".into()),
    };
    if map.len() > MAX_TOKEN_LIST {
        return wrong(format!("{} entries; at most {MAX_TOKEN_LIST}", map.len()));
    }
    let mut bias = Vec::with_capacity(map.len());
    for (key, value) in map {
        let shown = crate::error::shorten(&key);
        let Some(token) = key.parse::<u32>().ok().filter(|token| token.to_string() == key) else {
            return wrong(format!("'{shown}' is not a token id"));
        };
        let Some(value) = value.as_f64() else {
            return wrong(format!("the bias of token {token} is not a number"));
        };
        bias.push((token, value as f32));
    }
    Ok(bias)
}

fn token_list(fields: &mut Fields, name: &'static str) -> Result<Option<Vec<u32>>, ApiError> {
    let Some(values) = fields.array(name)? else { return Ok(None) };
    if values.len() > MAX_TOKEN_LIST {
        let message = format!("{} entries; at most {MAX_TOKEN_LIST}", values.len());
        return Err(ApiError::invalid(name, message));
    }
    let tokens = values.iter().map(|value| token_id(name, value)).collect::<Result<_, _>>()?;
    Ok(Some(tokens))
}

/// A token id of any 32-bit value; whether the vocabulary has it is checked by whom it concerns.
pub(crate) fn token_id(name: &str, value: &Value) -> Result<u32, ApiError> {
    integer(value).and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
        let value = crate::error::shorten(&value.to_string());
        ApiError::invalid(name, format!("{value} is not a token id"))
    })
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let wrong = |message: String| Err(ApiError::invalid("stop", message));
    let values = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(values)) => values,
        Some(_) => return wrong("must be a string or an array of strings".into()),
    };
    if values.len() > MAX_STOPS {
        return wrong(format!("{} strings; at most {MAX_STOPS}", values.len()));
    }
    let mut stops = Vec::with_capacity(values.len());
    for value in values {
        match value {
            Value::String(text) if text.is_empty() => {
                return wrong("an empty string would stop at once".into());
            }
            Value::String(text) if text.len() > MAX_STOP_BYTES => {
                return wrong(format!(
                    "a string of {} bytes; at most {MAX_STOP_BYTES}",
                    text.len()
                ));
            }
            Value::String(text) => stops.push(text),
            _ => return wrong("must be a string or an array of strings".into()),
        }
    }
    Ok(stops)
}

fn streaming(fields: &mut Fields) -> Result<Streaming, ApiError> {
    let is_on = fields.flag("stream")?.unwrap_or(false);
    let Some(options) = fields.take("stream_options") else {
        return Ok(Streaming { is_on, ..Streaming::default() });
    };
    if !is_on {
        return Err(ApiError::invalid("stream_options", "is only allowed with stream: true"));
    }
    let mut options = Fields::nested("stream_options", options)?;
    let include_usage = options.flag("include_usage")?.unwrap_or(false);
    let continuous_usage = options.flag("continuous_usage_stats")?.unwrap_or(false);
    Ok(Streaming { is_on, include_usage, continuous_usage })
}

fn truncation(fields: &mut Fields) -> Result<Option<Truncation>, ApiError> {
    let length = fields.integer("truncate_prompt_tokens", -1..=i64::from(u32::MAX))?;
    let keeps_the_start = match fields.text("truncation_side")?.as_deref() {
        None | Some("left") => false,
        Some("right") => true,
        Some(_) => return Err(ApiError::invalid("truncation_side", "must be left or right")),
    };
    match length {
        None => Ok(None),
        Some(0) => Err(ApiError::invalid("truncate_prompt_tokens", "must be -1 or at least 1")),
        Some(length) => {
            Ok(Some(Truncation { length: usize::try_from(length).ok(), keeps_the_start }))
        }
    }
}

/// Only plain text for now: a constraint that is not enforced would be a lie.
fn response_format(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(format) = fields.take("response_format") else { return Ok(()) };
    let mut format = Fields::nested("response_format", format)?;
    match format.text("type")?.as_deref() {
        Some("text") => Ok(()),
        Some("json_object" | "json_schema" | "structural_tag" | "grammar") => {
            Err(ApiError::invalid("response_format", "only type text is built so far"))
        }
        _ => Err(ApiError::invalid("response_format", "type must be text")),
    }
}

fn word(fields: &mut Fields, name: &'static str) -> Result<Option<String>, ApiError> {
    match fields.text(name)? {
        Some(text) if text.is_empty() || text.len() > MAX_WORD_BYTES => {
            Err(ApiError::invalid(name, format!("must have 1 to {MAX_WORD_BYTES} bytes")))
        }
        text => Ok(text),
    }
}

fn request_id(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let id = word(fields, "request_id")?;
    if id.as_ref().is_some_and(|id| !is_request_id(id)) {
        return Err(ApiError::invalid("request_id", "must be letters, digits, '-', '_', '.', ':'"));
    }
    Ok(id)
}

/// Whether a client's own request id may go into headers, answers and logs.
#[must_use]
pub fn is_request_id(id: &str) -> bool {
    const MAX_REQUEST_ID: usize = 128;
    !id.is_empty()
        && id.len() <= MAX_REQUEST_ID
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
}
