//! `cargo xtask ci`: every check, in order, with the time of each.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::shell::{command, run as run_command};
use crate::{cuda_toolkit, test, tidy};

/// Runs all stages; the first failure ends the run.
pub fn run() -> Result<()> {
    let mut stages = Stages::default();
    stages.run("format", || run_command(&mut command("cargo fmt --all --check")))?;
    stages.run("tidy", tidy::run)?;
    stages.run("clippy", || {
        run_command(&mut command("cargo clippy --workspace --all-targets --quiet -- -D warnings"))
    })?;
    stages.run("test", test::run)?;
    stages.run("doc", || {
        let mut doc = command("cargo doc --workspace --no-deps --quiet");
        run_command(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    stages.run("cuda", || {
        cuda_toolkit::run(&[])?;
        // The executor's side too; what needs no device runs.
        let packages = "--package pagedllm-cuda --package pagedllm-executor";
        let features = "--features pagedllm-cuda/cuda,pagedllm-executor/cuda";
        for line in [
            format!("cargo check {packages} {features} --all-targets"),
            "cargo test --package pagedllm-cuda --features cuda --lib".to_owned(),
        ] {
            run_command(command(&line).env("PAGEDLLM_CUDA_ARCHS", "sm_90a"))?;
        }
        Ok(())
    })?;
    stages.print();
    Ok(())
}

#[derive(Default)]
struct Stages {
    times: Vec<(&'static str, Duration)>,
}

impl Stages {
    fn run(&mut self, name: &'static str, stage: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n== {name}");
        let start = Instant::now();
        let result = stage().with_context(|| format!("stage {name}"));
        self.times.push((name, start.elapsed()));
        if result.is_err() {
            self.print();
        }
        result
    }

    fn print(&self) {
        println!("\n== times");
        for (name, time) in &self.times {
            println!("{name:8} {:7.1} s", time.as_secs_f64());
        }
    }
}
