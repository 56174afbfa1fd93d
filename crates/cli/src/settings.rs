//! Options from all places: command line over environment over configuration file.

use std::path::Path;

use anyhow::{Context, bail};
use clap::ArgMatches;
use pagedllm::{Applied, OPTIONS, OptionSpec, Options};
use pagedllm_server::{SERVER_OPTIONS, ServerOptions};
use yaml_rust2::{Yaml, YamlLoader};

use crate::arguments::given;

/// Largest configuration file.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Pairs of a configuration file, in its order.
#[derive(Debug, Default)]
pub(crate) struct Config(Vec<(String, Vec<String>)>);

impl Config {
    /// Reads the file that `--config` names.
    pub(crate) fn open(matches: &ArgMatches) -> anyhow::Result<Self> {
        let Some(path) = matches.get_one::<String>("config") else { return Ok(Self::default()) };
        let size = std::fs::metadata(path).with_context(|| format!("config: {path}"))?.len();
        if size > MAX_CONFIG_BYTES {
            bail!("config: {path} has {size} bytes; at most {MAX_CONFIG_BYTES}");
        }
        let text =
            std::fs::read_to_string(Path::new(path)).with_context(|| format!("config: {path}"))?;
        Self::parse(&text).with_context(|| format!("config: {path}"))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let documents = YamlLoader::load_from_str(text)?;
        let map = match documents.first() {
            None | Some(Yaml::Null) => return Ok(Self::default()),
            Some(Yaml::Hash(map)) => map,
            Some(_) => bail!("must be a mapping from option names to values"),
        };
        let mut pairs = Vec::new();
        for (name, value) in map {
            let Some(name) = name.as_str() else { bail!("option names must be text") };
            let values = match value {
                Yaml::Array(values) => {
                    values.iter().map(|value| scalar(name, value)).collect::<Result<_, _>>()?
                }
                // An option without a value is one that is not set.
                Yaml::Null => Vec::new(),
                value => vec![scalar(name, value)?],
            };
            pairs.push((name.replace('_', "-"), values));
        }
        Ok(Self(pairs))
    }

    pub(crate) fn get(&self, name: &str) -> Vec<String> {
        let pair = self.0.iter().find(|(known, _)| known == name);
        pair.map_or_else(Vec::new, |(_, values)| values.clone())
    }

    /// Refuses names that no command knows.
    pub(crate) fn check_names(&self, known: &[&str]) -> anyhow::Result<()> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => bail!("config: there is no option '{name}'"),
            None => Ok(()),
        }
    }
}

fn scalar(name: &str, value: &Yaml) -> anyhow::Result<String> {
    match value {
        Yaml::String(text) | Yaml::Real(text) => Ok(text.clone()),
        Yaml::Integer(number) => Ok(number.to_string()),
        Yaml::Boolean(flag) => Ok(flag.to_string()),
        _ => bail!("'{name}' must be a text, a number, true, false or a list of these"),
    }
}

/// What one option is set to, from the first place that says anything.
fn values<T>(matches: &ArgMatches, config: &Config, spec: &OptionSpec<T>) -> Vec<String> {
    let from_line = given(matches, spec);
    if !from_line.is_empty() {
        return from_line;
    }
    let variable = format!("PAGEDLLM_{}", spec.name.to_ascii_uppercase().replace('-', "_"));
    match std::env::var(variable) {
        Ok(value) => vec![value],
        Err(_) => config.get(spec.name),
    }
}

fn apply<T>(
    target: &mut T,
    table: &[OptionSpec<T>],
    matches: &ArgMatches,
    config: &Config,
) -> anyhow::Result<()> {
    for spec in table {
        let mut ignored = None;
        for value in values(matches, config, spec) {
            let applied = (spec.apply)(target, &value)
                .map_err(|message| anyhow::anyhow!("--{}: {message}", spec.name))?;
            if let Applied::Ignored(why) = applied {
                ignored = Some(why);
            }
        }
        if let Some(why) = ignored {
            tracing::warn!("--{} has no effect: {why}", spec.name);
        }
    }
    Ok(())
}

/// Options of the engine. The model without a name wins over `--model`.
pub(crate) fn engine(matches: &ArgMatches, config: &Config) -> anyhow::Result<Options> {
    let mut options = Options::new("");
    apply(&mut options, OPTIONS, matches, config)?;
    if let Some(model) = matches.get_one::<String>("MODEL") {
        options.model = model.into();
    }
    if options.model.as_os_str().is_empty() {
        bail!("no model is given; name a GGUF file or a directory with config.json");
    }
    Ok(options)
}

/// Options of the server.
pub(crate) fn server(matches: &ArgMatches, config: &Config) -> anyhow::Result<ServerOptions> {
    let mut options = ServerOptions::default();
    apply(&mut options, SERVER_OPTIONS, matches, config)?;
    if options.api_keys.is_empty() {
        options.api_keys.extend(std::env::var("VLLM_API_KEY").ok().filter(|key| !key.is_empty()));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_file_is_a_flat_mapping() {
        let text = "model: m.gguf\nmax_num_seqs: 8\nenforce-eager: true\n\
            api-key: [a, 'b']\nseed:\ngpu-memory-utilization: 0.5\n";
        let config = Config::parse(text).expect("it is well-formed");
        assert_eq!(config.get("model"), ["m.gguf"]);
        assert_eq!(config.get("max-num-seqs"), ["8"]);
        assert_eq!(config.get("enforce-eager"), ["true"]);
        assert_eq!(config.get("api-key"), ["a", "b"]);
        assert_eq!(config.get("gpu-memory-utilization"), ["0.5"]);
        assert!(config.get("seed").is_empty());
        assert!(config.check_names(&["model"]).is_err());
        for wrong in ["- a", "a: {b: c}", "1: 2", "a: [[b]]", "\"", "a: b: c"] {
            assert!(Config::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Config::parse("").is_ok());
    }
}
