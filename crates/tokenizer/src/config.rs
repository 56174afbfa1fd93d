//! `tokenizer_config.json`: special tokens in all their spellings, and chat templates.

use std::path::Path;

use serde_json::{Map, Value};

use crate::TokenizerError;

/// A chat template by its name; most models have one, named `default`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTemplate {
    /// `default`, `tool_use`, `rag`, ...
    pub name: String,
    /// Jinja source.
    pub source: String,
}

/// The special tokens that a chat template can name, such as `bos_token`: name to text, in the
/// file's order. A token that is null or absent is not in the map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpecialTokens(pub Map<String, Value>);

impl SpecialTokens {
    /// Text of the token called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }
}

/// What a tokenizer needs of its configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenizerConfig {
    pub(crate) special_tokens: SpecialTokens,
    pub(crate) templates: Vec<NamedTemplate>,
    pub(crate) add_bos: Option<bool>,
    pub(crate) add_eos: Option<bool>,
}

const TOKEN_KEYS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl TokenizerConfig {
    /// Reads the parsed file; `path` is for the messages.
    pub(crate) fn parse(value: &Value, path: &Path) -> Result<Self, TokenizerError> {
        let fail = |message: String| TokenizerError::Parse { path: path.to_owned(), message };
        let Some(map) = value.as_object() else {
            return Err(fail("not a JSON object".to_owned()));
        };
        let mut special = Map::new();
        for key in TOKEN_KEYS {
            if let Some(text) = token_text(map.get(key)).map_err(|m| fail(format!("{key}: {m}")))? {
                special.insert(key.to_owned(), text.into());
            }
        }
        if let Some(extra) = map.get("extra_special_tokens").and_then(Value::as_object) {
            for (key, token) in extra {
                let text = token_text(Some(token))
                    .map_err(|m| fail(format!("extra_special_tokens.{key}: {m}")))?;
                if let Some(text) = text {
                    special.insert(key.clone(), text.into());
                }
            }
        }
        let templates = match map.get("chat_template") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(source)) => {
                vec![NamedTemplate { name: "default".to_owned(), source: source.clone() }]
            }
            Some(Value::Array(list)) => list
                .iter()
                .map(|item| match (item["name"].as_str(), item["template"].as_str()) {
                    (Some(name), Some(source)) => {
                        Ok(NamedTemplate { name: name.to_owned(), source: source.to_owned() })
                    }
                    _ => Err(fail("chat_template: an item lacks name or template".to_owned())),
                })
                .collect::<Result<_, _>>()?,
            Some(_) => return Err(fail("chat_template: neither a string nor a list".to_owned())),
        };
        Ok(Self {
            special_tokens: SpecialTokens(special),
            templates,
            add_bos: map.get("add_bos_token").and_then(Value::as_bool),
            add_eos: map.get("add_eos_token").and_then(Value::as_bool),
        })
    }

    /// A `chat_template.jinja` in the folder of `beside` replaces the default template.
    pub(crate) fn add_template_files(
        &mut self,
        beside: &Path,
        read: impl Fn(&Path) -> Result<Vec<u8>, TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let path = beside.with_file_name("chat_template.jinja");
        if !path.exists() {
            return Ok(());
        }
        let source = String::from_utf8(read(&path)?)
            .map_err(|error| TokenizerError::Parse { path, message: error.to_string() })?;
        self.templates.retain(|template| template.name != "default");
        self.templates.insert(0, NamedTemplate { name: "default".to_owned(), source });
        Ok(())
    }
}

/// A token is a string, a map with its text in `content`, or null.
fn token_text(value: Option<&Value>) -> Result<Option<String>, &'static str> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Object(map)) => match map.get("content").and_then(Value::as_str) {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err("a token's map lacks its content"),
        },
        Some(_) => Err("neither a string, a map nor null"),
    }
}
