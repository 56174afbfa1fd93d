//! `/tokenize` and `/detokenize`, in vLLM's shapes.

use pagedllm::Llm;
use serde_json::{Value, json};

use crate::chat::conversation;
use crate::fields::Fields;
use crate::sampling::token_id;
use crate::{ApiError, ServiceOptions};

/// A prompt or a conversation to token ids.
pub(crate) fn tokenize(
    llm: &Llm,
    options: &ServiceOptions,
    mut fields: Fields,
) -> Result<(Value, Vec<String>), ApiError> {
    let with_strings = fields.flag("return_token_strs")?.unwrap_or(false);
    let add_special_tokens = fields.flag("add_special_tokens")?;
    let prompt = fields.text("prompt")?;
    let (tokens, field) = match prompt {
        Some(text) => (llm.encode(&text, add_special_tokens.unwrap_or(true)), "prompt"),
        None => {
            let mut chat =
                conversation(&mut fields).map_err(|error| match error.param.as_deref() {
                    Some("messages") => ApiError::invalid("prompt", "or messages is required"),
                    _ => error,
                })?;
            chat.add_special_tokens = add_special_tokens.unwrap_or(false);
            (llm.encode_chat(&chat), "messages")
        }
    };
    let ignored = fields.finish(options.strict_params)?;
    let tokens = tokens.map_err(|error| ApiError::from_facade(error, field))?;
    let strings = with_strings.then(|| {
        let text = |&token| String::from_utf8_lossy(&llm.token_bytes(token)).into_owned();
        tokens.iter().map(text).collect::<Vec<String>>()
    });
    let body = json!({
        "count": tokens.len(),
        "max_model_len": llm.description().max_model_len,
        "tokens": tokens,
        "token_strs": strings,
    });
    Ok((body, ignored))
}

/// Token ids to text.
pub(crate) fn detokenize(
    llm: &Llm,
    options: &ServiceOptions,
    mut fields: Fields,
) -> Result<(Value, Vec<String>), ApiError> {
    let Some(values) = fields.array("tokens")? else {
        return Err(ApiError::invalid("tokens", "is required"));
    };
    let ignored = fields.finish(options.strict_params)?;
    let vocab_size = llm.description().vocab_size;
    let mut tokens = Vec::with_capacity(values.len());
    for value in &values {
        let token = token_id("tokens", value)?;
        if token as usize >= vocab_size {
            let message = format!("token id {token} is outside the vocabulary of {vocab_size}");
            return Err(ApiError::invalid("tokens", message));
        }
        tokens.push(token);
    }
    let prompt =
        llm.decode(&tokens, false).map_err(|error| ApiError::from_facade(error, "tokens"))?;
    Ok((json!({"prompt": prompt}), ignored))
}
