//! `bench latency`: one batch from submit to end, and its prefill and decode apart.

use std::time::Instant;

use clap::{ArgMatches, Command};
use pagedllm::Llm;
use serde_json::json;

use super::statistics::{mean, median, percentiles};
use super::{Random, count, count_of, drain, open_model, progress, random_prompt, request};
use super::{with_common, write_result};
use crate::arguments;

pub(super) fn command() -> Command {
    let command = Command::new("latency").about("Time of one batch, in process");
    with_common(arguments::with_model(command))
        .arg(count("input-len", "32", "tokens of a prompt"))
        .arg(count("output-len", "128", "tokens to generate"))
        .arg(count("batch-size", "8", "prompts at once"))
        .arg(count("num-iters", "5", "batches that are measured; medians are printed"))
        .arg(count("num-iters-warmup", "1", "batches before that"))
}

/// Times of one batch, in seconds.
struct Times {
    whole: f64,
    /// The same prompts with one token each.
    first: f64,
}

pub(super) fn main(matches: &ArgMatches) -> anyhow::Result<()> {
    let input_len = count_of(matches, "input-len");
    let output_len = count_of(matches, "output-len");
    let batch_size = count_of(matches, "batch-size");
    let num_iters = count_of(matches, "num-iters");
    let llm = open_model(matches)?;
    let mut random = Random(matches.get_one("random-seed").copied().unwrap_or(0));
    let mut measured = Vec::new();
    let num_warm_ups = count_of(matches, "num-iters-warmup");
    for number in 0..num_warm_ups + num_iters {
        progress(&format!("batch {} of {}", number + 1, num_warm_ups + num_iters));
        let prompts: Vec<Vec<u32>> =
            (0..batch_size).map(|_| random_prompt(&llm, &mut random, input_len)).collect();
        let first = time(&llm, &prompts, 1)?;
        let whole = if output_len > 1 { time(&llm, &prompts, output_len)? } else { first };
        if number >= num_warm_ups {
            measured.push(Times { whole, first });
        }
    }
    progress("");

    let latencies: Vec<f64> = measured.iter().map(|times| times.whole).collect();
    let firsts: Vec<f64> = measured.iter().map(|times| times.first).collect();
    let decodes: Vec<f64> =
        measured.iter().map(|times| (times.whole - times.first).max(1e-9)).collect();
    let prefill_rate = (batch_size * input_len) as f64 / median(&firsts);
    let decode_rate = (batch_size * (output_len - 1)) as f64 / median(&decodes);
    println!("batch of {batch_size}, {input_len} tokens in, {output_len} out, {num_iters} times");
    println!("latency  {:.4} s median, {:.4} s mean", median(&latencies), mean(&latencies));
    println!("prefill  {prefill_rate:.1} tokens/s ({:.4} s to the first tokens)", median(&firsts));
    if output_len > 1 {
        let step = median(&decodes) / (output_len - 1) as f64;
        println!("decode   {decode_rate:.1} tokens/s ({:.3} ms a step)", step * 1000.0);
    }
    write_result(
        matches,
        &json!({
            "avg_latency": mean(&latencies),
            "median_latency": median(&latencies),
            "latencies": latencies,
            "percentiles": percentiles(&latencies),
            "first_token_latencies": firsts,
            "prefill_tokens_per_s": prefill_rate,
            "decode_tokens_per_s": if output_len > 1 { Some(decode_rate) } else { None },
            "input_len": input_len,
            "output_len": output_len,
            "batch_size": batch_size,
            "device": llm.description().device,
            "model": llm.description().model,
        }),
    )
}

/// Seconds from the first submit to the last end.
fn time(llm: &Llm, prompts: &[Vec<u32>], output_len: usize) -> anyhow::Result<f64> {
    let requests: Vec<_> =
        prompts.iter().map(|prompt| request(prompt.clone(), output_len)).collect();
    let start = Instant::now();
    let streams =
        requests.into_iter().map(|request| llm.generate(request)).collect::<Result<Vec<_>, _>>()?;
    for stream in streams {
        drain(stream)?;
    }
    Ok(start.elapsed().as_secs_f64())
}
