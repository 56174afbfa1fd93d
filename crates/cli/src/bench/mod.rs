//! `pagedllm bench`: latency and throughput in process, or a server's over HTTP.

mod client;
mod latency;
mod serve;
mod statistics;
mod throughput;
mod traffic;

use std::io::IsTerminal;

use anyhow::Context;
use clap::{Arg, ArgMatches, Command, value_parser};
use pagedllm::{Llm, OPTIONS, Prompt, SamplingParams, TextEvent, TextRequest, TextStream, TokenId};
use serde_json::Value;

use crate::settings::Config;
use crate::{logging, open, settings};

pub(crate) fn command() -> Command {
    Command::new("bench")
        .about("Measure a model or a server")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(latency::command())
        .subcommand(throughput::command())
        .subcommand(serve::command())
}

pub(crate) fn main(matches: &ArgMatches) -> anyhow::Result<()> {
    match matches.subcommand() {
        Some(("latency", matches)) => latency::main(matches),
        Some(("throughput", matches)) => throughput::main(matches),
        Some(("serve", matches)) => serve::main(matches),
        _ => unreachable!("clap requires one of the subcommands"),
    }
}

/// A count as an option.
fn count(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("N")
        .default_value(default)
        .help(help)
        .value_parser(value_parser!(u32).range(1..))
}

fn count_of(matches: &ArgMatches, name: &str) -> usize {
    matches.get_one::<u32>(name).map_or(1, |count| *count as usize)
}

/// `--output-json` and `--random-seed`, which every kind of benchmark has.
fn with_common(command: Command) -> Command {
    command
        .arg(
            Arg::new("output-json")
                .long("output-json")
                .value_name("FILE")
                .help("also write the result as JSON"),
        )
        .arg(
            Arg::new("random-seed")
                .long("random-seed")
                .value_name("N")
                .default_value("0")
                .help("seed of prompts and arrivals")
                .value_parser(value_parser!(u64)),
        )
}

/// Opens the model that the options describe. Prefix caching is off unless it is asked for:
/// benchmarks repeat their prompts.
fn open_model(matches: &ArgMatches) -> anyhow::Result<Llm> {
    let config = Config::open(matches)?;
    logging::start(matches, &config, "warn")?;
    let known: Vec<&str> = OPTIONS.iter().map(|spec| spec.name).chain(["log-level"]).collect();
    config.check_names(&known)?;
    let mut options = settings::engine(matches, &config)?;
    if !matches.contains_id("enable-prefix-caching") {
        options.enable_prefix_caching = false;
    }
    open::open(&options)
}

fn write_result(matches: &ArgMatches, result: &Value) -> anyhow::Result<()> {
    let Some(path) = matches.get_one::<String>("output-json") else { return Ok(()) };
    let text = format!("{result:#}\n");
    std::fs::write(path, text).with_context(|| format!("can't write {path}"))
}

/// A line that is overwritten, on a terminal only.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}

/// Random numbers that are the same everywhere for a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Above 0 and at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// A prompt of random tokens that end nothing.
fn random_prompt(llm: &Llm, random: &mut Random, length: usize) -> Vec<TokenId> {
    let model = llm.description();
    std::iter::repeat_with(|| random.below(model.vocab_size) as TokenId)
        .filter(|token| !model.eos_token_ids.contains(token))
        .take(length)
        .collect()
}

/// A greedy request that runs to its full length.
fn request(prompt: Vec<TokenId>, output_len: usize) -> TextRequest {
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens: output_len as u32,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    TextRequest { sampling, ..TextRequest::new(Prompt::TokenIds(prompt)) }
}

/// Reads a stream to its end: tokens generated. A fault is an error.
fn drain(stream: TextStream) -> anyhow::Result<usize> {
    let mut count = 0;
    for event in stream {
        match event {
            TextEvent::Text { tokens, .. } => count += tokens.len(),
            TextEvent::Finished { fault: Some(fault), .. } => anyhow::bail!(fault),
            TextEvent::Finished { .. } | TextEvent::Prompt { .. } => {}
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_those_of_splitmix64() {
        let mut random = Random(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
        assert!((0..1000).all(|_| (0.0..=1.0).contains(&random.unit()) && random.below(7) < 7));
    }
}
