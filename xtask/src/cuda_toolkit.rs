//! `cargo xtask cuda-toolkit`: brings nvcc where none is installed, from NVIDIA's wheels on PyPI,
//! into a cache outside the repository. `crates/cuda/build.rs` looks there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// What a compiler needs: the driver, the optimizer, its own headers, and those of the runtime.
const WHEELS: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
];

/// Runs the command. It takes no arguments, or `--print` to print the path of nvcc only.
///
/// # Errors
/// If pip is missing or fails, or the compiler does not run.
pub fn run(args: &[String]) -> Result<()> {
    let only_print = match args {
        [] => false,
        [flag] if flag == "--print" => true,
        _ => bail!("usage: cargo xtask cuda-toolkit [--print]"),
    };
    let home = std::env::var_os("HOME").context("HOME is not set")?;
    let cache = Path::new(&home).join(".cache/pagedllm/cuda-13.0");
    let nvcc = cache.join("nvidia/cu13/bin/nvcc");
    if only_print {
        return print(&nvcc);
    }
    if !nvcc.is_file() {
        install(&cache)?;
    }
    let output = Command::new(&nvcc).arg("--version").output();
    let output = output.with_context(|| format!("{} does not run", nvcc.display()))?;
    ensure!(output.status.success(), "{} --version failed", nvcc.display());
    print(&nvcc)
}

#[allow(clippy::print_stdout, reason = "the path is the command's result")]
fn print(nvcc: &Path) -> Result<()> {
    println!("{}", nvcc.display());
    Ok(())
}

fn install(cache: &PathBuf) -> Result<()> {
    std::fs::create_dir_all(cache).with_context(|| format!("creating {}", cache.display()))?;
    let status = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target"])
        .arg(cache)
        .args(WHEELS)
        .status()
        .context("python3 with pip is needed to fetch the wheels")?;
    ensure!(status.success(), "pip could not install the CUDA compiler");
    Ok(())
}
