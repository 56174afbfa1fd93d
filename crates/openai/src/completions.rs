//! `/v1/completions`: a prompt in one of four forms, continued.

use pagedllm::{Llm, Prompt, TextRequest, TokenId};
use serde_json::Value;

use crate::call::{Call, Shape, cut};
use crate::fields::Fields;
use crate::sampling::{Common, token_id};
use crate::{ApiError, ServiceOptions};

/// Most prompts in one body.
const MAX_PROMPTS: usize = 1024;
/// Most choices over all prompts of one body, those of `best_of` included.
const MAX_CHOICES: usize = 2048;
/// OpenAI's default.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// One prompt of the body.
enum Given {
    Text(String),
    TokenIds(Vec<TokenId>),
}

/// Reads a body and makes one request of each prompt.
pub(crate) fn read(
    llm: &Llm,
    options: &ServiceOptions,
    mut fields: Fields,
) -> Result<Call, ApiError> {
    let model = llm.description();
    let mut common = Common::read(&mut fields, model, options)?;
    let prompts = prompts(&mut fields, model.vocab_size)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    let max_tokens = fields.integer("max_tokens", 0..=i64::from(u32::MAX))?;
    let max_tokens = max_tokens.map_or(DEFAULT_MAX_TOKENS, |count| count as u32);
    let logprobs = fields.integer("logprobs", 0..=i64::from(options.max_logprobs))?;
    common.sampling.logprobs = logprobs.map(|count| count as u32);
    let add_special_tokens = fields.flag("add_special_tokens")?.unwrap_or(true);
    fields.refuse("suffix", "filling in the middle is not built")?;
    let ignored = fields.finish(options.strict_params)?;
    check(&common, echo, max_tokens, prompts.len())?;

    let given_prompt_logprobs = common.sampling.prompt_logprobs.is_some();
    if echo && common.sampling.logprobs.is_some() {
        common.sampling.prompt_logprobs =
            common.sampling.prompt_logprobs.max(common.sampling.logprobs);
    }
    let mut requests: Vec<TextRequest> = Vec::with_capacity(prompts.len());
    let mut echoed = Vec::new();
    for prompt in prompts {
        let (text, tokens) = match prompt {
            Given::Text(text) => {
                let tokens = llm
                    .encode(&text, add_special_tokens)
                    .map_err(|error| ApiError::from_facade(error, "prompt"))?;
                (Some(text), tokens)
            }
            Given::TokenIds(tokens) => (None, tokens),
        };
        let whole = tokens.len();
        let tokens = cut(tokens, common.truncation, model.max_model_len, max_tokens);
        if tokens.is_empty() {
            return Err(ApiError::invalid("prompt", "has no tokens"));
        }
        if echo {
            echoed.push(match text {
                Some(text) if tokens.len() == whole => text,
                _ => llm
                    .decode(&tokens, common.skip_special_tokens)
                    .map_err(|error| ApiError::from_facade(error, "prompt"))?,
            });
        }
        requests.push(common.request(Prompt::TokenIds(tokens), max_tokens));
    }
    let shape =
        Shape::Completion { echoed: echo.then_some(echoed), logprobs: common.sampling.logprobs };
    Ok(Call::new(common, requests, shape, given_prompt_logprobs, ignored))
}

fn check(common: &Common, echo: bool, max_tokens: u32, prompts: usize) -> Result<(), ApiError> {
    let sampling = &common.sampling;
    if max_tokens == 0 && !echo && sampling.prompt_logprobs.is_none() {
        return Err(ApiError::invalid("max_tokens", "0 is for echo or prompt_logprobs only"));
    }
    let choices = prompts.saturating_mul(sampling.best_of as usize);
    if choices > MAX_CHOICES {
        let message = format!("{choices} choices over all prompts; at most {MAX_CHOICES}");
        return Err(ApiError::invalid("n", message));
    }
    Ok(())
}

/// A string, a list of strings, a list of token ids, or a list of such lists.
fn prompts(fields: &mut Fields, vocab_size: usize) -> Result<Vec<Given>, ApiError> {
    let wrong = |message: String| Err(ApiError::invalid("prompt", message));
    let forms = "must be a string, a list of strings, a list of token ids or a list of such lists";
    let values = match fields.take("prompt") {
        None => return wrong("is required".into()),
        Some(Value::String(text)) => return Ok(vec![Given::Text(text)]),
        Some(Value::Array(values)) => values,
        Some(_) => return wrong(forms.into()),
    };
    let is_one_prompt = match values.first() {
        None => return wrong("must not be empty".into()),
        Some(first) => !first.is_string() && !first.is_array(),
    };
    if is_one_prompt {
        return Ok(vec![Given::TokenIds(token_ids(&values, vocab_size)?)]);
    }
    if values.len() > MAX_PROMPTS {
        return wrong(format!("{} prompts; at most {MAX_PROMPTS}", values.len()));
    }
    let are_texts = values[0].is_string();
    let mut prompts = Vec::with_capacity(values.len());
    for value in values {
        prompts.push(match value {
            Value::String(text) if are_texts => Given::Text(text),
            Value::Array(tokens) if !are_texts => Given::TokenIds(token_ids(&tokens, vocab_size)?),
            _ => return wrong(forms.into()),
        });
    }
    Ok(prompts)
}

fn token_ids(values: &[Value], vocab_size: usize) -> Result<Vec<TokenId>, ApiError> {
    let mut tokens = Vec::with_capacity(values.len());
    for value in values {
        let token = token_id("prompt", value)?;
        if token as usize >= vocab_size {
            let message = format!("token id {token} is outside the vocabulary of {vocab_size}");
            return Err(ApiError::invalid("prompt", message));
        }
        tokens.push(token);
    }
    Ok(tokens)
}
