//! The pagedllm program: `serve`, `run`, `inspect` and `bench`.
//!
//! Options are read from tables that the facade and the server bring, in three layers: command
//! line over environment (`PAGEDLLM_<OPTION>`) over `--config FILE.yaml`. Only this crate touches
//! what belongs to a process: arguments, environment, signals, the log and the terminal.

#![forbid(unsafe_code)]
// A program prints.
#![allow(clippy::print_stdout)]

mod arguments;
mod bench;
mod inspect;
mod logging;
mod open;
mod run;
mod serve;
mod settings;

use std::process::ExitCode;

use clap::Command;

fn command() -> Command {
    Command::new("pagedllm")
        .about("LLM inference with PagedAttention and continuous batching, on CPUs and GPUs")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(100)
        .subcommand(serve::command())
        .subcommand(run::command())
        .subcommand(inspect::command())
        .subcommand(bench::command())
}

fn main() -> ExitCode {
    let matches = command().get_matches_from(arguments::normalized(std::env::args_os()));
    let result = match matches.subcommand() {
        Some(("serve", matches)) => serve::main(matches),
        Some(("run", matches)) => run::main(matches),
        Some(("inspect", matches)) => inspect::main(matches),
        Some(("bench", matches)) => bench::main(matches),
        _ => unreachable!("clap requires one of the subcommands"),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
