//! Tasks of the repository: `cargo xtask COMMAND`. Each command is a file.
#![allow(clippy::print_stdout)]

mod abi;
mod bindings;
mod ci;
mod cuda_toolkit;
mod debian;
mod demo;
mod device_pack;
mod dist;
mod gguf_cut;
mod golden;
mod languages;
mod models;
mod shell;
mod snippets;
mod test;
mod tidy;
mod zig;

use anyhow::{Result, bail};

const HELP: &str = "\
Usage: cargo xtask COMMAND

  demo          build, fetch a small real model, serve it, and show an answer
  test          fetch what the tests need, then run all of them
  ci            everything that CI runs, with the time of each stage
  abi           describe the C interface as JSON and Zig, and refuse what would break programs
  dist [--cuda] [--checked]
                build, strip and pack library and program, and try the package
  bindings      the tests of the Go, Node and Python bindings, and those of C and C++ beside them
  snippets      write the files that documents show into them
  tidy          layers, file lengths, unsafe, words that do not belong, licences
  sim [SEEDS]   the serving simulator, over that many seeds (default 1000)
  golden        make the golden files again (installs torch and transformers; slow)
  models        fetch the models of demo and tests, and print where they are
  cuda-toolkit  fetch nvcc where none is installed
  device-pack [--model split|LAYERS]
                program, tests and benchmarks for a GPU machine without cargo, in one folder; or the
                small real model, in two parts or cut to its first layers
";

fn main() -> Result<()> {
    std::env::set_current_dir(shell::root())?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("demo") => demo::run(),
        Some("test") => test::run(),
        Some("ci") => ci::run(),
        Some("abi") => abi::run(&args[1..]),
        Some("dist") => dist::run(&args[1..]),
        Some("bindings") => bindings::run(),
        Some("snippets") => snippets::run(),
        Some("tidy") => tidy::run(),
        Some("sim") => test::simulate(args.get(1).map_or("1000", String::as_str)),
        Some("golden") => golden::run(),
        Some("models") => models::run(),
        Some("cuda-toolkit") => cuda_toolkit::run(&args[1..]),
        Some("device-pack") => device_pack::run(&args[1..]),
        Some("help" | "--help" | "-h") | None => {
            print!("{HELP}");
            Ok(())
        }
        Some(other) => bail!("unknown command `{other}`\n\n{HELP}"),
    }
}
