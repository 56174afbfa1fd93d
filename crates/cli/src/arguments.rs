//! Tables of options as arguments of a command.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};
use pagedllm::{OPTIONS, OptionSpec};

/// vLLM's short names, which are longer than the one letter that is usual.
const SHORT_NAMES: [(&str, &str); 3] =
    [("-tp", "--tensor-parallel-size"), ("-q", "--quantization"), ("-cc", "--config")];

/// Spellings that vLLM takes: `--max_model_len` for `--max-model-len`, and `-tp`.
pub(crate) fn normalized(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut is_literal = false;
    arguments
        .map(|argument| {
            is_literal |= argument == "--";
            match argument.to_str() {
                Some(text) if !is_literal => normalized_one(text).into(),
                _ => argument,
            }
        })
        .collect()
}

fn normalized_one(text: &str) -> String {
    let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
    if let Some((_, long)) = SHORT_NAMES.iter().find(|(short, _)| *short == name) {
        return format!("{long}{value}");
    }
    match name.strip_prefix("--") {
        Some(name) => format!("--{}{value}", name.replace('_', "-")),
        None => text.to_owned(),
    }
}

/// Adds a table to a command, under a heading of its help.
pub(crate) fn with_options<T>(
    command: Command,
    heading: &'static str,
    table: &'static [OptionSpec<T>],
) -> Command {
    table.iter().fold(command, |command, spec| {
        let help = match spec.default {
            "" => spec.help.to_owned(),
            default if spec.value.is_empty() => format!("{} [default: {default}]", spec.help),
            default => format!("{} [default: {default}]", spec.help),
        };
        let argument = Arg::new(spec.name)
            .long(spec.name)
            .help(help)
            .help_heading(heading)
            .action(ArgAction::Append);
        if spec.value.is_empty() {
            let off = Arg::new(off_name(spec.name))
                .long(off_name(spec.name))
                .action(ArgAction::SetTrue)
                .overrides_with(spec.name)
                .hide(true);
            let on = argument
                .num_args(0..=1)
                .require_equals(true)
                .value_name("BOOL")
                .default_missing_value("true")
                .hide_possible_values(true);
            return command.arg(on).arg(off);
        }
        let argument = argument.value_name(spec.value).allow_hyphen_values(spec.value == "N");
        command.arg(match spec.value.ends_with("...") {
            true => argument.num_args(1..),
            false => argument,
        })
    })
}

fn off_name(name: &'static str) -> &'static str {
    // Once a start, for each of a few switches: a leak of some bytes, for clap wants names that
    // live as long as the program.
    Box::leak(format!("no-{name}").into_boxed_str())
}

/// What the command line says about an option, in order; empty where it says nothing.
pub(crate) fn given<T>(matches: &ArgMatches, spec: &OptionSpec<T>) -> Vec<String> {
    let is_off = spec.value.is_empty() && {
        let off = format!("no-{}", spec.name);
        matches.try_get_one::<bool>(&off).ok().flatten().copied().unwrap_or(false)
    };
    if is_off {
        return vec!["false".to_owned()];
    }
    matches
        .try_get_many::<String>(spec.name)
        .ok()
        .flatten()
        .map_or_else(Vec::new, |values| values.cloned().collect())
}

/// The model as an argument without a name, and the options of the engine.
pub(crate) fn with_model(command: Command) -> Command {
    let model = Arg::new("MODEL").help("GGUF file, or directory with config.json");
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .help("YAML file of options by their long names; command line and environment win over it");
    let level = Arg::new("log-level")
        .long("log-level")
        .visible_alias("uvicorn-log-level")
        .value_name("error|warning|info|debug|trace")
        .help("what is logged to standard error [default: info]");
    let command = command.arg(model).arg(config).arg(level);
    with_options(command, "Engine options", OPTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_vllm_are_taken() {
        for (given, expected) in [
            ("--max_model_len", "--max-model-len"),
            ("--max_model_len=a_b", "--max-model-len=a_b"),
            ("-tp", "--tensor-parallel-size"),
            ("-q", "--quantization"),
            ("model_name", "model_name"),
            ("-h", "-h"),
        ] {
            assert_eq!(normalized_one(given), expected);
        }
        let after = ["pagedllm", "--", "--a_b"].map(OsString::from);
        assert_eq!(normalized(after.clone().into_iter()), after);
    }
}
