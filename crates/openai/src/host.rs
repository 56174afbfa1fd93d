//! Requests of hosts that embed the engine: they read the facade's events and not OpenAI's
//! chunks, but name parameters as OpenAI does and get the same defaults and the same refusals.

use pagedllm::{TextRequest, TokenId};
use serde_json::{Map, Value};

use crate::chat::conversation;
use crate::fields::{Fields, parse};
use crate::service::salt;
use crate::{ApiError, Caller, Service, ServiceOptions, chat, completions};

/// What a host asks to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPrompt<'a> {
    /// A text.
    Text(&'a str),
    /// Token ids.
    TokenIds(&'a [TokenId]),
    /// JSON: a list of messages, or an object with `messages` and what else a chat body says
    /// about its conversation (`tools`, `documents`, `add_generation_prompt` and so on).
    Chat(&'a str),
}

impl Service {
    /// The request for a prompt and a JSON object of parameters, which may be empty. Unknown
    /// parameters are errors. Nothing is queued.
    ///
    /// # Errors
    /// A parameter is wrong, or the prompt can't be encoded.
    pub fn host_request(
        &self,
        prompt: &HostPrompt<'_>,
        params: &str,
    ) -> Result<TextRequest, ApiError> {
        let options = ServiceOptions { strict_params: true, ..self.options().clone() };
        let mut fields = object(params)?;
        // How events travel is the host's choice.
        fields.take("stream");
        fields.take("stream_options");
        let mut call = match prompt {
            HostPrompt::Text(text) => {
                fields.add("prompt", Value::from(*text))?;
                completions::read(self.llm(), &options, fields)
            }
            HostPrompt::TokenIds(tokens) => {
                fields.add("prompt", Value::from(*tokens))?;
                completions::read(self.llm(), &options, fields)
            }
            HostPrompt::Chat(json) => {
                for (name, value) in chat_fields(json)? {
                    fields.add(&name, value)?;
                }
                chat::read(self.llm(), &options, fields)
            }
        }?;
        let mut request = call.requests.remove(0);
        request.cache_salt = salt(call.cache_salt.as_deref(), &Caller::default());
        Ok(request)
    }

    /// The prompt of a conversation, as the model's template writes it. The JSON is that of
    /// [`HostPrompt::Chat`].
    ///
    /// # Errors
    /// The conversation is wrong, or the template refuses it.
    pub fn render_chat(&self, json: &str) -> Result<String, ApiError> {
        let mut fields = Fields::from(chat_fields(json)?);
        let chat = conversation(&mut fields)?;
        fields.finish(true)?;
        self.llm().render_chat(&chat).map_err(|error| ApiError::from_facade(error, "messages"))
    }
}

fn object(json: &str) -> Result<Fields, ApiError> {
    if json.trim().is_empty() { Ok(Fields::from(Map::new())) } else { parse(json.as_bytes()) }
}

fn chat_fields(json: &str) -> Result<Map<String, Value>, ApiError> {
    let is_list = json.trim_start().starts_with('[');
    let fields = match is_list {
        true => parse(format!("{{\"messages\":{json}}}").as_bytes()),
        false => parse(json.as_bytes()),
    };
    fields.map(Fields::into_map).map_err(|error| ApiError::invalid("messages", error.message))
}
