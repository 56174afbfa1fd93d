//! `cargo xtask test`: all tests, with what they need.

use anyhow::Result;

use crate::shell::{built, command, run as run_command};
use crate::{bindings, debian, dist, languages, models, zig};

/// Fetches the models, then runs the tests of all crates, the simulator, the bindings, the clients
/// and the package.
pub fn run() -> Result<()> {
    languages::install()?;
    debian::install(&[("cmake", "cmake"), ("pkg-config", "pkg-config"), ("valgrind", "valgrind")])?;
    let model = models::smollm2()?;
    models::tokenizers()?;
    let folder = models::folder()?;
    run_command(
        command("cargo test --workspace --profile checked").env("PAGEDLLM_MODELS", &folder),
    )?;
    simulate("1000")?;
    bindings::run()?;
    zig::check(&built("checked"))?;
    run_command(&mut command("cargo build --profile checked --package pagedllm-cli"))?;
    run_command(
        command("bash tests/clients/run.sh --quick")
            .env("PAGEDLLM_BIN", built("checked").join("pagedllm"))
            .env("MODEL_PATH", &model),
    )?;
    dist::run(&["--checked".to_owned()])
}

/// Runs the serving simulator over `seeds` seeds.
pub fn simulate(seeds: &str) -> Result<()> {
    run_command(&mut command(&format!(
        "cargo run --profile checked --quiet --package pagedllm-sim -- --seeds {seeds}"
    )))
}
