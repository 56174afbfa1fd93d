//! The JSON overlay: option names of the command line to values.

use pagedllm::{Applied, OPTIONS, Options};
use pagedllm_server::{SERVER_OPTIONS, ServerOptions};
use serde_json::{Map, Value};

use crate::error::Failure;
use crate::status::PAGEDLLM_INVALID_OPTION;

/// Most entries of a list.
const MAX_LIST: usize = 1024;

/// An overlay: pairs of an option's name and a value.
#[derive(Debug)]
pub(crate) struct Overlay(Vec<(String, String)>);

fn wrong(name: &str, message: impl std::fmt::Display) -> Failure {
    Failure::new(PAGEDLLM_INVALID_OPTION, format!("{name}: {message}")).about(name)
}

impl Overlay {
    /// Reads an object; nothing at all is an empty one. Names may have `_` for `-`, a list sets
    /// its option once for each entry, and null leaves the default.
    pub(crate) fn parse(json: &str) -> Result<Self, Failure> {
        if json.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let map: Map<String, Value> = serde_json::from_str(json)
            .map_err(|error| wrong("options", format!("not a JSON object: {error}")))?;
        let mut pairs = Vec::with_capacity(map.len());
        for (name, value) in map {
            let name = name.replace('_', "-");
            let values = match value {
                Value::Array(values) if values.len() <= MAX_LIST => values,
                Value::Array(values) => {
                    let message = format!("{} entries; at most {MAX_LIST}", values.len());
                    return Err(wrong(&name, message));
                }
                value => vec![value],
            };
            for value in values {
                let text = match value {
                    Value::Null => continue,
                    Value::String(text) => text,
                    Value::Bool(_) | Value::Number(_) => value.to_string(),
                    _ => return Err(wrong(&name, "must be a text, a number, true or false")),
                };
                pairs.push((name.clone(), text));
            }
        }
        Ok(Self(pairs))
    }

    /// Sets options of the engine and of the protocol.
    pub(crate) fn apply(
        &self,
        engine: &mut Options,
        server: &mut ServerOptions,
    ) -> Result<(), Failure> {
        for (name, value) in &self.0 {
            let applied = if OPTIONS.iter().any(|spec| spec.name == name) {
                engine.set(name, value).map_err(Failure::from)?
            } else {
                set_server(server, name, value)?
            };
            note(name, &applied);
        }
        Ok(())
    }

    /// Sets options of the server alone.
    pub(crate) fn apply_to_server(&self, server: &mut ServerOptions) -> Result<(), Failure> {
        for (name, value) in &self.0 {
            note(name, &set_server(server, name, value)?);
        }
        Ok(())
    }
}

fn set_server(server: &mut ServerOptions, name: &str, value: &str) -> Result<Applied, Failure> {
    let spec = SERVER_OPTIONS
        .iter()
        .find(|spec| spec.name == name)
        .ok_or_else(|| wrong(name, "there is no such option"))?;
    (spec.apply)(server, value).map_err(|message| wrong(name, message))
}

fn note(name: &str, applied: &Applied) {
    if let Applied::Ignored(why) = applied {
        tracing::warn!("{name} has no effect: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(json: &str) -> Result<(Options, ServerOptions), Failure> {
        let (mut engine, mut server) = (Options::new("m"), ServerOptions::default());
        Overlay::parse(json)?.apply(&mut engine, &mut server)?;
        Ok((engine, server))
    }

    #[test]
    fn both_tables_are_read_in_either_spelling() {
        let json = r#"{"max-num-seqs": 4, "enable_prefix_caching": false, "dtype": "float32",
            "seed": null, "api-key": ["a", "b"]}"#;
        let (engine, server) = apply(json).expect("fine");
        assert_eq!((engine.max_num_seqs, engine.enable_prefix_caching), (4, false));
        assert_eq!(server.api_keys, ["a", "b"]);
        assert_eq!(apply("  ").expect("empty").0, Options::new("m"));
    }

    #[test]
    fn mistakes_name_their_option() {
        for json in ["[]", "{", r#"{"x": 1}"#, r#"{"seed": {}}"#, r#"{"max-num-seqs": -1}"#] {
            let failure = apply(json).expect_err(json);
            assert_eq!(failure.status, PAGEDLLM_INVALID_OPTION, "{json}");
        }
        let mut server = ServerOptions::default();
        let overlay = Overlay::parse(r#"{"max-num-seqs": 4}"#).expect("an object");
        assert!(overlay.apply_to_server(&mut server).is_err(), "an engine's option");
    }
}
