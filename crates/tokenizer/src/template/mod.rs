//! Chat templates, rendered as transformers renders them.

use std::time::SystemTime;

use minijinja::Environment;
use serde_json::{Map, Value};

use crate::{SpecialTokens, TemplateError};

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
    /// More variables for the template, such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
    /// What `strftime_now` prints, as UTC.
    pub now: SystemTime,
}

/// In which form a template reads a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// As text: parts are joined before rendering.
    Text,
    /// As a list of parts: text is wrapped in one.
    Parts,
}

/// A compiled chat template. `Send + Sync`; rendering does not change it.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: SpecialTokens,
    content_format: ContentFormat,
}

impl ChatTemplate {
    /// Compiles `source`; the template may name `special_tokens`.
    ///
    /// # Errors
    /// If the source is not a template.
    pub fn compile(source: &str, special_tokens: &SpecialTokens) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .add_template_owned("chat", source.to_owned())
            .map_err(|error| TemplateError::Compile { message: error.to_string() })?;
        Ok(Self {
            environment,
            special_tokens: special_tokens.clone(),
            content_format: ContentFormat::Text,
        })
    }

    /// In which form the template reads content.
    #[must_use]
    pub fn content_format(&self) -> ContentFormat {
        self.content_format
    }

    /// The prompt of a conversation as the OpenAI protocol has it: content may be text, parts,
    /// null or missing, and arguments of tool calls may be JSON text.
    ///
    /// # Errors
    /// If the input has the wrong shape, the template refuses it, or it costs too much.
    pub fn render(&self, input: &ChatInput) -> Result<String, TemplateError> {
        self.render_exact(input)
    }

    /// The prompt of a conversation that is already in the form the template reads, exactly as
    /// transformers renders it.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_exact(&self, input: &ChatInput) -> Result<String, TemplateError> {
        let template = self
            .environment
            .get_template("chat")
            .map_err(|error| TemplateError::Compile { message: error.to_string() })?;
        let mut context = self.special_tokens.0.clone();
        context.extend(input.kwargs.clone());
        context.insert("messages".into(), input.messages.clone());
        context.insert("tools".into(), input.tools.clone().unwrap_or_default());
        context.insert("documents".into(), input.documents.clone().unwrap_or_default());
        context.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        template
            .render(minijinja::Value::from_serialize(&context))
            .map_err(|error| TemplateError::Render { message: error.to_string() })
    }
}
