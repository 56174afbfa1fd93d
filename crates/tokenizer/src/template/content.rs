//! From a conversation as the OpenAI protocol has it to one that a given template reads.
//!
//! Templates differ in what they take: content as text or as parts, the arguments of a tool call
//! as an object or as JSON text, an assistant's empty content as none or as an empty text. What a
//! template takes is found out by rendering small conversations once, when it is compiled.

use serde_json::{Map, Value, json};

use crate::TemplateError;

/// Appears in a prompt only where a probe's content does.
const MARK: &str = "pagedllmprobe";
/// What joins parts for a template that reads text.
const JOINER: &str = "\n";
const ROLES: [&str; 4] = ["user", "system", "assistant", "tool"];

/// What a template takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    /// By role: content as a list of parts.
    parts: [bool; ROLES.len()],
    /// A user's content as text.
    text: bool,
    /// An assistant's content as none beside its tool calls, and not as an empty text.
    none_with_calls: bool,
    /// Arguments of tool calls as JSON text, and not as an object.
    arguments_text: bool,
}

impl Reads {
    /// Asks a template, given as a function from messages to the prompt, if it makes one.
    pub(crate) fn probe(render: impl Fn(&Value) -> Option<String>) -> Self {
        let part = || json!([{"type": "text", "text": MARK}]);
        // A template that prints the list itself shows the part's type as well.
        let shows = |messages: &Value| {
            render(messages).is_some_and(|prompt| {
                prompt.contains(MARK)
                    && !prompt.contains("{'type'")
                    && !prompt.contains("{\"type\"")
            })
        };
        let parts = ROLES.map(|role| shows(&conversation(role, part())));
        let text = shows(&conversation("user", json!(MARK)));
        let calls = |content: Value, arguments: Value| {
            let call = json!({"id": "call12345", "type": "function",
                "function": {"name": "probe", "arguments": arguments}});
            let mut messages = json!([{"role": "user", "content": "a"},
                {"role": "assistant", "content": content, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call12345", "name": "probe", "content": "b"}]);
            if content.is_null() {
                messages[1]["content"] = Value::Null;
            }
            render(&messages).filter(|prompt| prompt.contains(MARK))
        };
        let map = || json!({MARK: 1});
        let json_text = || Value::from(map().to_string());
        let is_json = |prompt: Option<String>| prompt.is_some_and(|text| !text.contains("{'"));
        let takes = |content: &str| {
            [map(), json_text()]
                .into_iter()
                .any(|arguments| calls(json!(content), arguments).is_some())
        };
        let takes_none = || {
            [map(), json_text()]
                .into_iter()
                .any(|arguments| calls(Value::Null, arguments).is_some())
        };
        let none_with_calls = !takes("") && takes_none();
        let content = || if none_with_calls { Value::Null } else { json!("") };
        let arguments_text =
            !is_json(calls(content(), map())) && is_json(calls(content(), json_text()));
        Self { parts, text, none_with_calls, arguments_text }
    }

    /// Whether a user's content is read as parts.
    pub(crate) fn reads_parts(&self) -> bool {
        self.parts[0]
    }

    /// The conversation in the form that the template takes.
    pub(crate) fn normalize(&self, messages: &Value) -> Result<Value, TemplateError> {
        let messages = messages.as_array().ok_or_else(|| input("messages is not a list".into()))?;
        let normalize = |(index, message): (usize, &Value)| {
            let path = format!("messages[{index}]");
            let Some(message) = message.as_object() else {
                return Err(input(format!("{path} is not an object")));
            };
            self.normalize_message(message, &path)
        };
        messages.iter().enumerate().map(normalize).collect()
    }

    fn normalize_message(
        &self,
        message: &Map<String, Value>,
        path: &str,
    ) -> Result<Value, TemplateError> {
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        let mut out: Map<String, Value> = message
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let has_calls = match out.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => {
                calls.iter_mut().for_each(|call| self.normalize_call(call));
                !calls.is_empty()
            }
            None => false,
        };
        let content = self.content(role, out.get("content"), &format!("{path}.content"))?;
        let is_empty = content.as_str() == Some("");
        let is_none = is_empty && has_calls && self.none_with_calls && role == "assistant";
        out.insert("content".into(), if is_none { Value::Null } else { content });
        Ok(Value::Object(out))
    }

    fn content(
        &self,
        role: &str,
        content: Option<&Value>,
        path: &str,
    ) -> Result<Value, TemplateError> {
        let is_parts_role = |(known, reads): (&&str, &bool)| *known == role && *reads;
        let reads_parts = ROLES.iter().zip(&self.parts).any(is_parts_role);
        let wrap = |text: &str| json!({"type": "text", "text": text});
        match content {
            None | Some(Value::Null) => Ok(json!("")),
            Some(Value::String(text)) if reads_parts && !self.text => Ok(json!([wrap(text)])),
            Some(Value::String(text)) => Ok(json!(text)),
            Some(Value::Array(parts)) => {
                let texts = parts
                    .iter()
                    .enumerate()
                    .map(|(index, part)| part_text(part, &format!("{path}[{index}]")))
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(match reads_parts {
                    true => texts.into_iter().map(wrap).collect(),
                    false => texts.join(JOINER).into(),
                })
            }
            Some(_) => Err(input(format!("{path} is neither text, a list of parts nor null"))),
        }
    }

    fn normalize_call(&self, call: &mut Value) {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { return };
        match arguments {
            Value::String(text) if !self.arguments_text => {
                let text = if text.trim().is_empty() { "{}" } else { text.as_str() };
                if let Ok(map @ Value::Object(_)) = serde_json::from_str(text) {
                    *arguments = map;
                }
            }
            Value::Object(map) if self.arguments_text => {
                *arguments = Value::from(Value::Object(std::mem::take(map)).to_string());
            }
            _ => {}
        }
    }
}

fn input(message: String) -> TemplateError {
    TemplateError::Input { message }
}

/// A conversation in which a message of `role` has `content`.
fn conversation(role: &str, content: Value) -> Value {
    let user = json!({"role": "user", "content": "a"});
    match role {
        "system" => json!([{"role": role, "content": content}, user]),
        "assistant" => json!([user, {"role": role, "content": content}, user]),
        "tool" => {
            let call = json!({"id": "call12345", "type": "function",
                "function": {"name": "probe", "arguments": {"a": 1}}});
            json!([user, {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": role, "tool_call_id": "call12345", "name": "probe", "content": content}])
        }
        _ => json!([{"role": role, "content": content}]),
    }
}

fn part_text<'a>(part: &'a Value, path: &str) -> Result<&'a str, TemplateError> {
    if let Some(text) = part.as_str() {
        return Ok(text);
    }
    let kind = part["type"].as_str().unwrap_or("text");
    let key = match kind {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        _ => return Err(input(format!("{path}.type {kind:?} is not supported; text is"))),
    };
    part[key].as_str().ok_or_else(|| input(format!("{path}.{key} is not text")))
}
