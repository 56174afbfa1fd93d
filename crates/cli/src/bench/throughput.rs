//! `bench throughput`: many requests at once, tokens and requests a second.

use std::time::Instant;

use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::json;

use super::statistics::median;
use super::{Random, count, count_of, drain, open_model, progress, random_prompt, request};
use super::{with_common, write_result};
use crate::arguments;

pub(super) fn command() -> Command {
    let command = Command::new("throughput").about("Many requests at once, in process");
    with_common(arguments::with_model(command))
        .arg(count("num-prompts", "100", "requests"))
        .arg(count("input-len", "128", "tokens of a prompt"))
        .arg(count("output-len", "128", "tokens to generate"))
        .arg(count("num-iters", "1", "repetitions; the median is printed"))
        .arg(
            Arg::new("random-range-ratio")
                .long("random-range-ratio")
                .value_name("F")
                .default_value("0")
                .help("lengths vary by this share in both directions, 0 to 1")
                .value_parser(value_parser!(f64)),
        )
}

pub(super) fn main(matches: &ArgMatches) -> anyhow::Result<()> {
    let num_prompts = count_of(matches, "num-prompts");
    let ratio = matches.get_one::<f64>("random-range-ratio").copied().unwrap_or(0.0);
    anyhow::ensure!((0.0..=1.0).contains(&ratio), "--random-range-ratio: {ratio} is not in 0 to 1");
    let llm = open_model(matches)?;
    let mut random = Random(matches.get_one("random-seed").copied().unwrap_or(0));
    let varied = |length: usize, random: &mut Random| {
        let spread = (length as f64 * ratio) as usize;
        (length - spread + random.below(2 * spread + 1)).max(1)
    };
    let (mut times, mut tokens_in, mut tokens_out) = (Vec::new(), 0, 0);
    for number in 0..count_of(matches, "num-iters") {
        progress(&format!("run {}", number + 1));
        let requests: Vec<_> = (0..num_prompts)
            .map(|_| {
                let input_len = varied(count_of(matches, "input-len"), &mut random);
                let output_len = varied(count_of(matches, "output-len"), &mut random);
                request(random_prompt(&llm, &mut random, input_len), output_len)
            })
            .collect();
        let start = Instant::now();
        let streams = requests
            .into_iter()
            .map(|request| llm.generate(request))
            .collect::<Result<Vec<_>, _>>()?;
        (tokens_in, tokens_out) = (0, 0);
        for (at, stream) in streams.into_iter().enumerate() {
            tokens_in += stream.prompt_tokens().len();
            tokens_out += drain(stream)?;
            progress(&format!("run {}, request {} of {num_prompts}", number + 1, at + 1));
        }
        times.push(start.elapsed().as_secs_f64());
    }
    progress("");
    let time = median(&times);
    let rate = |count: usize| count as f64 / time;
    println!("{num_prompts} requests, {tokens_in} tokens in, {tokens_out} out, {time:.3} s");
    println!("throughput {:.2} requests/s", rate(num_prompts));
    println!("output     {:.1} tokens/s", rate(tokens_out));
    println!("total      {:.1} tokens/s", rate(tokens_in + tokens_out));
    write_result(
        matches,
        &json!({
            "elapsed_time": time,
            "elapsed_times": times,
            "num_requests": num_prompts,
            "total_num_tokens": tokens_in + tokens_out,
            "output_num_tokens": tokens_out,
            "requests_per_second": rate(num_prompts),
            "tokens_per_second": rate(tokens_in + tokens_out),
            "output_tokens_per_second": rate(tokens_out),
            "device": llm.description().device,
            "model": llm.description().model,
        }),
    )
}
