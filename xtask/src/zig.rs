//! The Zig declarations against the compiler and the library: an example is built and streams an
//! answer. The compiler comes from PyPI's `ziglang`, pinned, into the cache.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::shell::{cache, command, is_installed, output, root, run as run_command};

const WHEEL: &str = "ziglang==0.15.2";

/// Builds the example against the library in `folder` and runs it with a tiny model.
pub fn check(folder: &Path) -> Result<()> {
    if !is_installed("python3") {
        return Ok(());
    }
    let zig = compiler()?;
    let program = folder.join("zig-stream");
    let bindings = root().join("bindings/zig");
    let module = |name: &str, file: &str| format!("-M{name}={}", bindings.join(file).display());
    run_command(
        command(&zig.to_string_lossy())
            .args(["build-exe", "-lc", "-lpagedllm", "-L"])
            .arg(folder)
            .args(["--dep", "pagedllm", &module("root", "example/stream.zig")])
            .arg(module("pagedllm", "pagedllm.zig"))
            .arg(format!("-femit-bin={}", program.display()))
            .args(["--cache-dir", &folder.join("zig-cache").to_string_lossy()]),
    )?;
    let answer = output(
        command(&program.to_string_lossy())
            .arg(root().join("tests/golden/tiny/llama"))
            .arg("hi")
            .env("LD_LIBRARY_PATH", folder),
    )?;
    ensure!(!answer.is_empty(), "the Zig example wrote nothing");
    Ok(())
}

fn compiler() -> Result<PathBuf> {
    let folder = cache()?.join(WHEEL.replace("==", "-"));
    let zig = folder.join("ziglang/zig");
    if !zig.is_file() {
        let mut pip = command("python3 -m pip install --quiet --no-deps --no-compile --target");
        run_command(pip.arg(&folder).arg(WHEEL))?;
    }
    Ok(zig)
}
