//! Chat templates, rendered as transformers renders them.
//!
//! The language is minijinja's with Python's ways added (`environment.rs`, `python.rs`,
//! `dialect.rs`). A template is foreign code: it reaches no file, no other template and no clock,
//! and what it may cost is limited (`limits.rs`).
//!
//! Known differences from Jinja: `~` quotes the texts of a list or a map with double quotes, tuples
//! print as lists, `%` does not format text, and `[][::-1]` is an error. A text that a template
//! doubles with `~` or `+` over and over is limited by fuel alone.

mod content;
mod dialect;
mod environment;
mod limits;
mod python;
mod strftime;

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

use crate::{SpecialTokens, TemplateError};
use content::Reads;
use environment::{NAME, NOW, Raised};
use limits::{Exceeded, MAX_FUEL, Prompt};

/// What a template renders.
#[derive(Clone, Debug)]
pub struct ChatInput {
    /// Array of messages, each an object with `role` and mostly `content`.
    pub messages: Value,
    /// Array of tool schemas; `None` reaches the template as none.
    pub tools: Option<Value>,
    /// Array of documents; `None` reaches the template as none.
    pub documents: Option<Value>,
    /// Whether to end with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether to leave the last message open, so that generation continues it.
    pub continue_final_message: bool,
    /// More variables for the template, such as `enable_thinking`. They win over the special
    /// tokens, and not over the fields above.
    pub kwargs: Map<String, Value>,
    /// What `strftime_now` prints, as UTC.
    pub now: SystemTime,
}

/// In which form a template reads a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// As text: parts are joined by a new line before rendering.
    Text,
    /// As a list of parts.
    Parts,
}

/// A compiled chat template. Rendering does not change it.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: SpecialTokens,
    names_content: bool,
    reads: Reads,
}

/// Follows the last message while it is rendered, to find where it ends.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// Under which names a message may have its reasoning, the one that templates read first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Bytes of plain text that one rendering may copy, whatever its fuel.
const MAX_COPIED_BYTES: u64 = 4 << 30;
/// Instructions of a rendering that finds out what a template reads.
const PROBE_FUEL: u64 = 200_000;

impl ChatTemplate {
    /// Compiles `source`; the template may name `special_tokens`.
    ///
    /// # Errors
    /// If the source is not a template or is longer than 1 MiB.
    pub fn compile(source: &str, special_tokens: &SpecialTokens) -> Result<Self, TemplateError> {
        if source.len() > limits::MAX_SOURCE_BYTES {
            let limit = limits::MAX_SOURCE_BYTES as u64;
            return Err(TemplateError::TooExpensive { limit, unit: "bytes of source" });
        }
        let (translated, longest_text) = dialect::translate(source);
        let mut environment = environment::new();
        environment
            .add_template_owned(NAME, translated)
            .map_err(|error| TemplateError::Compile { message: format!("{error:#}") })?;
        environment.set_fuel(Some(PROBE_FUEL));
        let reads = on_large_stack(|| {
            let is_expensive = Cell::new(false);
            Reads::probe(|messages| {
                if is_expensive.get() {
                    return None;
                }
                let input = ChatInput::probe(messages);
                let prompt = render_prepared(&environment, special_tokens, &input, messages);
                is_expensive.set(matches!(prompt, Err(TemplateError::TooExpensive { .. })));
                prompt.ok()
            })
        })?;
        let copied = MAX_COPIED_BYTES / (longest_text as u64).max(1);
        environment.set_fuel(Some(MAX_FUEL.min(copied)));
        Ok(Self {
            environment,
            special_tokens: special_tokens.clone(),
            names_content: source.contains("content"),
            reads,
        })
    }

    /// In which form the template reads a user's content.
    #[must_use]
    pub fn content_format(&self) -> ContentFormat {
        if self.reads.reads_parts() { ContentFormat::Parts } else { ContentFormat::Text }
    }

    /// The prompt of a conversation as the OpenAI protocol has it: content may be text, parts,
    /// null or missing, and arguments of tool calls may be JSON text. Each becomes what the
    /// template reads; null, missing and empty content give the same prompt.
    ///
    /// # Errors
    /// If the input has the wrong shape or a part that is no text, if the template refuses it, or
    /// if it costs too much.
    pub fn render(&self, input: &ChatInput) -> Result<String, TemplateError> {
        self.render_messages(input, self.reads.normalize(&input.messages)?)
    }

    /// The prompt of a conversation that already has the form the template reads, exactly as
    /// transformers renders it: a null field of a message counts as missing.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_exact(&self, input: &ChatInput) -> Result<String, TemplateError> {
        let Some(messages) = input.messages.as_array() else {
            return Err(TemplateError::Input { message: "messages is not a list".to_owned() });
        };
        let without_nulls = |message: &Value| match message {
            Value::Object(map) => {
                let fields = map.iter().filter(|(_, value)| !value.is_null());
                Value::Object(fields.map(|(key, value)| (key.clone(), value.clone())).collect())
            }
            other => other.clone(),
        };
        self.render_messages(input, messages.iter().map(without_nulls).collect())
    }

    fn render_messages(
        &self,
        input: &ChatInput,
        mut messages: Value,
    ) -> Result<String, TemplateError> {
        for message in messages.as_array_mut().into_iter().flatten() {
            let Some(map) = message.as_object_mut() else {
                let message = "a message is not an object".to_owned();
                return Err(TemplateError::Input { message });
            };
            share_reasoning(map);
        }
        let continued = if input.continue_final_message {
            Some(self.open_final_message(&mut messages)?)
        } else {
            None
        };
        let prompt = on_large_stack(|| {
            render_prepared(&self.environment, &self.special_tokens, input, &messages)
        })??;
        match continued {
            Some(text) => cut_at_tag(prompt, &text),
            None => Ok(prompt),
        }
    }

    /// Adds the tag to the last message and returns its text.
    fn open_final_message(&self, messages: &mut Value) -> Result<String, TemplateError> {
        let fail = |message: &str| TemplateError::Input {
            message: format!("continue_final_message is set, but {message}"),
        };
        let last = messages.as_array_mut().and_then(|messages| messages.last_mut());
        let last = last.ok_or_else(|| fail("messages is empty"))?;
        if !self.names_content {
            return Err(fail("the chat template does not read content"));
        }
        let content = match last.get_mut("content") {
            Some(Value::Array(parts)) => parts
                .iter_mut()
                .rev()
                .find_map(|part| part.get_mut("text"))
                .ok_or_else(|| fail("the last message has no text"))?,
            Some(content) => content,
            None => return Err(fail("the last message has no content")),
        };
        let Value::String(text) = content else {
            return Err(fail("the last message's content is not text"));
        };
        let original = text.clone();
        text.push_str(CONTINUE_TAG);
        Ok(original)
    }
}

impl ChatInput {
    fn probe(messages: &Value) -> Self {
        Self {
            messages: messages.clone(),
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: Map::new(),
            now: UNIX_EPOCH,
        }
    }
}

/// Copies a message's reasoning to the other names under which templates look for it.
fn share_reasoning(message: &mut Map<String, Value>) {
    let found = REASONING.iter().find_map(|&name| message.get(name).filter(|v| !v.is_null()));
    let Some(reasoning) = found.cloned() else { return };
    let thinking = message.shift_remove("thinking").unwrap_or_else(|| reasoning.clone());
    message.shift_insert(0, "thinking".to_owned(), thinking);
    message.insert("reasoning_content".to_owned(), reasoning);
}

/// The prompt up to the tag that was added to the last message.
fn cut_at_tag(mut prompt: String, text: &str) -> Result<String, TemplateError> {
    let at = prompt.rfind(CONTINUE_TAG.trim_end()).filter(|_| prompt.contains(text.trim()));
    let Some(at) = at else {
        let message = "continue_final_message is set, but the chat template does not show the \
                       last message as it is";
        return Err(TemplateError::Input { message: message.to_owned() });
    };
    let keeps_space = prompt[at..].starts_with(CONTINUE_TAG);
    prompt.truncate(at);
    if !keeps_space {
        prompt.truncate(prompt.trim_end().len());
    }
    Ok(prompt)
}

/// Runs on a thread whose stack holds whatever a template can nest within its fuel.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    let fail = |message: &str| TemplateError::Render { message: message.to_owned() };
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("chat-template".to_owned())
            .stack_size(limits::STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|_| fail("no thread to render on"))?
            .join()
            .map_err(|_| fail("the renderer panicked"))
    })
}

fn render_prepared(
    environment: &Environment<'static>,
    special_tokens: &SpecialTokens,
    input: &ChatInput,
    messages: &Value,
) -> Result<String, TemplateError> {
    let template = environment.get_template(NAME).map_err(|error| failure(&error))?;
    let mut context = special_tokens.0.clone();
    context.extend(input.kwargs.clone());
    context.insert("messages".to_owned(), messages.clone());
    context.insert("tools".to_owned(), input.tools.clone().unwrap_or_default());
    context.insert("documents".to_owned(), input.documents.clone().unwrap_or_default());
    context.insert("add_generation_prompt".to_owned(), input.add_generation_prompt.into());
    let now = input.now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    context.insert(NOW.to_owned(), now.into());
    let mut prompt = Prompt::default();
    template.render_captured_to(&context, &mut prompt).map_err(|error| failure(&error))?;
    String::from_utf8(prompt.bytes)
        .map_err(|error| TemplateError::Render { message: error.to_string() })
}

/// What minijinja's error says to a caller.
fn failure(error: &minijinja::Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooExpensive { limit: MAX_FUEL, unit: "instructions" };
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(raised) = error.downcast_ref::<Raised>() {
            return TemplateError::Raised { message: raised.0.clone() };
        }
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let exceeded = error
            .downcast_ref::<Exceeded>()
            .or_else(|| inner.and_then(|inner| inner.downcast_ref::<Exceeded>()));
        if let Some(&Exceeded { limit, unit }) = exceeded {
            return TemplateError::TooExpensive { limit, unit };
        }
        cause = error.source();
    }
    TemplateError::Render { message: format!("{error:#}") }
}
