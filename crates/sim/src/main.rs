//! `pagedllm-sim --seeds 1000`, `pagedllm-sim --seed 17`, `pagedllm-sim --canary`,
//! `pagedllm-sim --waste`, `pagedllm-sim --host`.

#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use anyhow::{Context, bail};
use pagedllm_sim::fake_executor::Bug;
use pagedllm_sim::options::Options;
use pagedllm_sim::{host, run_seed, waste};

enum Command {
    Seeds(u64),
    Seed(u64),
    Canary,
    Waste,
    Host,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Command> {
    let flag = arguments.next().unwrap_or_else(|| "--seeds".to_owned());
    let number = arguments.next();
    let number = |default: u64| match &number {
        Some(text) => text.parse().with_context(|| format!("{text} is not a number")),
        None => Ok(default),
    };
    match flag.as_str() {
        "--seeds" => Ok(Command::Seeds(number(1000)?)),
        "--seed" => Ok(Command::Seed(number(0)?)),
        "--canary" => Ok(Command::Canary),
        "--waste" => Ok(Command::Waste),
        "--host" => Ok(Command::Host),
        other => {
            bail!("unknown option {other}; use --seeds N, --seed S, --canary, --waste or --host")
        }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    match parse(std::env::args().skip(1))? {
        Command::Seeds(num_seeds) => seeds(num_seeds),
        Command::Seed(seed) => {
            println!("{:#?}", Options::new(seed));
            let reports = run_seed(seed, None).map_err(anyhow::Error::msg)?;
            for (depth, report) in (1..).zip(&reports) {
                println!(
                    "{depth} in flight: {} steps, {} choices, {} refused, {} preemptions, \
                     {} tokens from the cache, {} copies",
                    report.num_steps,
                    report.outcomes.len(),
                    report.num_refused,
                    report.num_preemptions,
                    report.num_hit_tokens,
                    report.num_copies
                );
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Canary => canary(),
        Command::Waste => {
            let stats = waste::serve(500);
            println!("{:.2}% of the held KV slots have no token", stats.kv_waste() * 100.0);
            Ok(ExitCode::SUCCESS)
        }
        Command::Host => {
            for num_seqs in [1, 16, 64, 256] {
                let us = host::step_us(num_seqs, 2000);
                println!("{num_seqs} sequences: {us:.1} us of host time a decode step");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn seeds(num_seeds: u64) -> anyhow::Result<ExitCode> {
    let mut totals = [0u64; 5];
    for seed in 0..num_seeds {
        for report in run_seed(seed, None).map_err(anyhow::Error::msg)? {
            let counts = [
                report.num_steps,
                report.outcomes.len() as u64,
                report.num_preemptions,
                report.num_hit_tokens,
                report.num_copies as u64,
            ];
            for (total, count) in totals.iter_mut().zip(counts) {
                *total += count;
            }
        }
    }
    let [steps, choices, preemptions, hits, copies] = totals;
    println!(
        "{num_seeds} seeds passed: {steps} steps, {choices} choices, {preemptions} preemptions, \
         {hits} tokens from the cache, {copies} copies"
    );
    Ok(ExitCode::SUCCESS)
}

/// Makes each known mistake on purpose and fails, as it must, when the simulator sees them all.
fn canary() -> anyhow::Result<ExitCode> {
    std::panic::set_hook(Box::new(|_| {}));
    for bug in Bug::ALL {
        let seen = (0..200).find_map(|seed| run_seed(seed, Some(bug)).err());
        let Some(failure) = seen else {
            println!("{bug:?} was not seen in 200 seeds");
            return Ok(ExitCode::SUCCESS);
        };
        println!("{bug:?}: {}", failure.lines().next().unwrap_or_default());
    }
    Ok(ExitCode::FAILURE)
}
