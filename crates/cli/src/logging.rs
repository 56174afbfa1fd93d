//! The log of the process, on standard error.

use std::io::IsTerminal;

use anyhow::bail;
use clap::ArgMatches;
use tracing_subscriber::EnvFilter;

use crate::settings::Config;

/// Starts the log. `RUST_LOG` wins over the level, for those who look into one part.
pub(crate) fn start(matches: &ArgMatches, config: &Config, default: &str) -> anyhow::Result<()> {
    let from_line = matches.get_one::<String>("log-level").cloned();
    let from_environment = || std::env::var("PAGEDLLM_LOG_LEVEL").ok();
    let from_config = || config.get("log-level").pop();
    let level = from_line.or_else(from_environment).or_else(from_config);
    let level = match level.as_deref().unwrap_or(default).to_ascii_lowercase().as_str() {
        "critical" | "fatal" | "error" => "error",
        "warning" | "warn" => "warn",
        "info" => "info",
        "debug" => "debug",
        "trace" => "trace",
        other => bail!("--log-level: '{other}' is not one of error, warning, info, debug, trace"),
    };
    // Only our own crates speak at the chosen level; libraries below only of trouble.
    let ours = ["pagedllm", "pagedllm_cli", "pagedllm_server", "pagedllm_openai"];
    let parts = ["engine", "executor", "models", "checkpoint", "tokenizer", "cpu", "cuda"];
    let mut directives = vec!["warn".to_owned()];
    directives.extend(ours.iter().map(|name| format!("{name}={level}")));
    directives.extend(parts.iter().map(|name| format!("pagedllm_{name}={level}")));
    let filter =
        EnvFilter::try_from_default_env().or_else(|_| EnvFilter::try_new(directives.join(",")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    Ok(())
}
