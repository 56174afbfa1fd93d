//! `/v1/chat/completions`: a conversation, rendered by the model's template and continued.

use pagedllm::{ChatPrompt, Llm, Prompt};
use serde_json::{Map, Value};

use crate::call::{Call, Shape, cut};
use crate::error::shorten;
use crate::fields::Fields;
use crate::sampling::Common;
use crate::{ApiError, ServiceOptions};

/// Most messages of a conversation.
const MAX_MESSAGES: usize = 16_384;
/// Most tools of a request.
const MAX_TOOLS: usize = 512;
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Reads a body and makes a request of it.
pub(crate) fn read(
    llm: &Llm,
    options: &ServiceOptions,
    mut fields: Fields,
) -> Result<Call, ApiError> {
    let model = llm.description();
    let mut common = Common::read(&mut fields, model, options)?;
    let max_tokens = max_tokens(&mut fields)?;
    common.sampling.logprobs = logprobs(&mut fields, options)?;
    fields.refuse("audio", "audio is not built")?;
    modalities(&mut fields)?;
    let mut chat = conversation(&mut fields)?;
    chat.add_special_tokens = fields.flag("add_special_tokens")?.unwrap_or(false);
    let ignored = fields.finish(options.strict_params)?;

    let tokens =
        llm.encode_chat(&chat).map_err(|error| ApiError::from_facade(error, "messages"))?;
    let tokens = cut(tokens, common.truncation, model.max_model_len, max_tokens.unwrap_or(1));
    if tokens.is_empty() {
        return Err(ApiError::invalid("messages", "the rendered conversation has no tokens"));
    }
    // Without a limit the answer may fill the context; a full one is refused by the facade.
    let room = model.max_model_len.saturating_sub(tokens.len()).max(1);
    let max_tokens = max_tokens.unwrap_or(u32::try_from(room).unwrap_or(u32::MAX));
    let requests = vec![common.request(Prompt::TokenIds(tokens), max_tokens)];
    let shape = Shape::Chat { role: options.response_role.clone() };
    let wants_prompt_logprobs = common.sampling.prompt_logprobs.is_some();
    Ok(Call::new(common, requests, shape, wants_prompt_logprobs, ignored))
}

fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let range = 1..=i64::from(u32::MAX);
    let old = fields.integer("max_tokens", range.clone())?;
    let new = fields.integer("max_completion_tokens", range)?;
    Ok(new.or(old).map(|count| count as u32))
}

fn logprobs(fields: &mut Fields, options: &ServiceOptions) -> Result<Option<u32>, ApiError> {
    let is_on = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=i64::from(options.max_logprobs))?;
    match top {
        Some(1..) if !is_on => Err(ApiError::invalid("top_logprobs", "needs logprobs: true")),
        _ => Ok(is_on.then(|| top.map_or(0, |top| top as u32))),
    }
}

fn modalities(fields: &mut Fields) -> Result<(), ApiError> {
    let modalities = fields.array("modalities")?.unwrap_or_default();
    match modalities.iter().all(|modality| modality.as_str() == Some("text")) {
        true => Ok(()),
        false => Err(ApiError::invalid("modalities", "only text is built")),
    }
}

/// The conversation and what else the template sees. Also the body of `/tokenize`.
pub(crate) fn conversation(fields: &mut Fields) -> Result<ChatPrompt, ApiError> {
    let Some(messages) = fields.array("messages")? else {
        return Err(ApiError::invalid("messages", "is required"));
    };
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        let message = format!("{} messages; 1 to {MAX_MESSAGES} are allowed", messages.len());
        return Err(ApiError::invalid("messages", message));
    }
    for (index, message) in messages.iter().enumerate() {
        check_message(index, message)?;
    }
    fields.refuse("chat_template", "templates of requests are not run")?;
    let mut template_kwargs = match fields.take("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(ApiError::invalid("chat_template_kwargs", "must be an object")),
    };
    if let Some(effort) = fields.text("reasoning_effort")? {
        template_kwargs.entry("reasoning_effort").or_insert(Value::String(effort));
    }
    let add_generation_prompt = fields.flag("add_generation_prompt")?;
    let continue_final_message = fields.flag("continue_final_message")?.unwrap_or(false);
    if continue_final_message && add_generation_prompt == Some(true) {
        let message = "can't be true together with continue_final_message";
        return Err(ApiError::invalid("add_generation_prompt", message));
    }
    Ok(ChatPrompt {
        messages,
        tools: tools(fields)?,
        documents: fields.array("documents")?.map(Value::Array),
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        add_special_tokens: false,
        template_kwargs,
    })
}

fn check_message(index: usize, message: &Value) -> Result<(), ApiError> {
    let at = |field: &str| format!("messages[{index}]{field}");
    let Value::Object(message) = message else {
        return Err(ApiError::invalid(at(""), "must be an object"));
    };
    let role = match message.get("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role.as_str(),
        Some(Value::String(role)) => {
            let message = format!("'{}' is not one of {}", shorten(role), ROLES.join(", "));
            return Err(ApiError::invalid(at(".role"), message));
        }
        _ => return Err(ApiError::invalid(at(".role"), "is required and must be a string")),
    };
    match message.get("content") {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            for (part, value) in parts.iter().enumerate() {
                check_part(&at(&format!(".content[{part}]")), value)?;
            }
        }
        None | Some(Value::Null) if matches!(role, "assistant" | "tool" | "function") => {}
        None | Some(Value::Null) => {
            return Err(ApiError::invalid(at(".content"), format!("is required for role {role}")));
        }
        Some(_) => return Err(ApiError::invalid(at(".content"), "must be a string or parts")),
    }
    match message.get("tool_calls") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(calls)) => calls.iter().enumerate().try_for_each(|(call, value)| {
            check_tool_call(&at(&format!(".tool_calls[{call}]")), value)
        }),
        Some(_) => Err(ApiError::invalid(at(".tool_calls"), "must be an array")),
    }
}

fn check_part(at: &str, part: &Value) -> Result<(), ApiError> {
    let kind = part.get("type").and_then(Value::as_str);
    match kind {
        Some("text") if part.get("text").is_some_and(Value::is_string) => Ok(()),
        Some("refusal") if part.get("refusal").is_some_and(Value::is_string) => Ok(()),
        Some("text" | "refusal") => Err(ApiError::invalid(at, "has no text")),
        Some(kind) => {
            let message =
                format!("type '{}' is not supported: the model reads text", shorten(kind));
            Err(ApiError::invalid(format!("{at}.type"), message))
        }
        None => Err(ApiError::invalid(format!("{at}.type"), "is required and must be a string")),
    }
}

fn check_tool_call(at: &str, call: &Value) -> Result<(), ApiError> {
    let function = call.get("function");
    if !function.and_then(|f| f.get("name")).is_some_and(Value::is_string) {
        return Err(ApiError::invalid(format!("{at}.function.name"), "must be a string"));
    }
    match function.and_then(|function| function.get("arguments")) {
        None | Some(Value::Null | Value::String(_) | Value::Object(_)) => Ok(()),
        Some(_) => {
            Err(ApiError::invalid(format!("{at}.function.arguments"), "must be a JSON string"))
        }
    }
}

/// Tools for the template; none where the request forbids their use.
fn tools(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let tools = fields.array("tools")?.unwrap_or_default();
    fields.flag("parallel_tool_calls")?;
    let choice = fields.take("tool_choice");
    if tools.len() > MAX_TOOLS {
        let message = format!("{} tools; at most {MAX_TOOLS}", tools.len());
        return Err(ApiError::invalid("tools", message));
    }
    for (index, tool) in tools.iter().enumerate() {
        let name = tool.get("function").and_then(|function| function.get("name"));
        if tool.get("type").and_then(Value::as_str) != Some("function") {
            return Err(ApiError::invalid(format!("tools[{index}].type"), "must be function"));
        }
        if !name.is_some_and(Value::is_string) {
            let at = format!("tools[{index}].function.name");
            return Err(ApiError::invalid(at, "must be a string"));
        }
    }
    let is_shown = match choice.as_ref() {
        None => true,
        Some(Value::String(choice)) if choice == "auto" => true,
        Some(Value::String(choice)) if choice == "none" => false,
        Some(Value::String(choice)) if choice != "required" => {
            return Err(ApiError::invalid("tool_choice", "must be auto, none, required or a tool"));
        }
        Some(Value::String(_) | Value::Object(_)) => {
            return Err(ApiError::invalid("tool_choice", "a forced tool is not built yet"));
        }
        Some(_) => {
            return Err(ApiError::invalid("tool_choice", "must be auto, none, required or a tool"));
        }
    };
    if choice.is_some_and(|choice| choice == "auto") && tools.is_empty() {
        return Err(ApiError::invalid("tool_choice", "needs tools"));
    }
    Ok((is_shown && !tools.is_empty()).then_some(Value::Array(tools)))
}
