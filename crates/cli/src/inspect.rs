//! `pagedllm inspect`: what a model file holds, and what would fit into memory.

use std::path::Path;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use pagedllm::{CheckpointFormat, Inspection, parse_count};
use serde_json::json;

use crate::open::bytes;

/// Contexts for which the KV cache is shown.
const CONTEXTS: [usize; 5] = [2048, 8192, 32_768, 131_072, 1_048_576];

pub(crate) fn command() -> Command {
    Command::new("inspect")
        .about("Describe a model file without loading it")
        .arg(Arg::new("FILE").required(true).help("GGUF file, or directory with config.json"))
        .arg(
            Arg::new("memory")
                .long("memory")
                .value_name("BYTES")
                .help("memory to plan for (G, M suffixes): the longest context that fits")
                .value_parser(|text: &str| parse_count(text)),
        )
        .arg(
            Arg::new("metadata")
                .long("metadata")
                .action(ArgAction::SetTrue)
                .help("also the file's own metadata"),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("one JSON object instead of text"),
        )
        .arg(
            Arg::new("max-num-seqs")
                .long("max-num-seqs")
                .value_name("N")
                .default_value("1")
                .value_parser(value_parser!(u64).range(1..))
                .help("sequences that share the memory"),
        )
}

pub(crate) fn main(matches: &ArgMatches) -> anyhow::Result<()> {
    let path = matches.get_one::<String>("FILE").context("a file is required")?;
    let found = pagedllm::inspect(Path::new(path))?;
    let memory = matches.get_one::<u64>("memory").copied();
    let num_seqs = matches.get_one::<u64>("max-num-seqs").copied().unwrap_or(1);
    let fits = memory.map(|memory| context_that_fits(&found, memory, num_seqs));
    if matches.get_flag("json") {
        println!("{}", as_json(&found, fits));
        return Ok(());
    }
    print(&found);
    if let (Some(memory), Some(fits)) = (memory, fits) {
        println!(
            "with {}: {fits} tokens of context for each of {num_seqs} sequences (16-bit KV cache)",
            bytes(memory)
        );
    }
    if matches.get_flag("metadata") {
        for (name, value) in &found.metadata {
            println!("  {name} = {value}");
        }
    }
    Ok(())
}

/// Tokens that each sequence can have beside the weights, at most the model's own context.
/// Activations take little beside these two and are not counted.
fn context_that_fits(found: &Inspection, memory: u64, num_seqs: u64) -> u64 {
    let left = memory.saturating_sub(found.weight_bytes);
    let tokens = left / found.kv_bytes_per_token.max(1) / num_seqs.max(1);
    tokens.min(found.context_length as u64)
}

fn format_name(format: CheckpointFormat) -> &'static str {
    match format {
        CheckpointFormat::Gguf => "gguf",
        CheckpointFormat::Safetensors => "safetensors",
        CheckpointFormat::Dummy => "dummy",
    }
}

fn print(found: &Inspection) {
    let (heads, kv_heads, head_dim) = found.heads;
    println!("format        {}", format_name(found.format));
    println!("architecture  {}", found.architecture);
    println!("parameters    {:.1} million", found.num_parameters as f64 / 1e6);
    println!("weights       {}", bytes(found.weight_bytes));
    for tensors in &found.tensors {
        println!("  {:<12}{} tensors, {}", tensors.format, tensors.count, bytes(tensors.bytes));
    }
    println!("layers        {}", found.num_layers);
    println!("hidden size   {}", found.hidden_size);
    println!("heads         {heads} of {head_dim}, {kv_heads} for keys and values");
    println!("vocabulary    {}", found.vocab_size);
    println!("context       {} tokens", found.context_length);
    println!("tokenizer     {}", if found.has_tokenizer { "inside" } else { "none" });
    println!(
        "chat template {}",
        if has_chat_template(found) { "inside" } else { "not in the metadata" }
    );
    println!("KV cache      {} a token in 16 bits", bytes(found.kv_bytes_per_token));
    for context in CONTEXTS.into_iter().filter(|&tokens| tokens <= found.context_length) {
        let size = found.kv_bytes_per_token.saturating_mul(context as u64);
        println!("  {context:<10}  tokens take {}", bytes(size));
    }
}

fn has_chat_template(found: &Inspection) -> bool {
    found.metadata.iter().any(|(name, _)| name.ends_with("chat_template"))
}

fn as_json(found: &Inspection, fits: Option<u64>) -> serde_json::Value {
    let (heads, kv_heads, head_dim) = found.heads;
    let tensors: Vec<_> = found
        .tensors
        .iter()
        .map(|t| json!({"format": t.format, "count": t.count, "bytes": t.bytes}))
        .collect();
    json!({
        "format": format_name(found.format),
        "architecture": found.architecture,
        "num_parameters": found.num_parameters,
        "weight_bytes": found.weight_bytes,
        "tensors": tensors,
        "num_layers": found.num_layers,
        "hidden_size": found.hidden_size,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": found.vocab_size,
        "context_length": found.context_length,
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "has_tokenizer": found.has_tokenizer,
        "has_chat_template": has_chat_template(found),
        "context_that_fits": fits,
    })
}
