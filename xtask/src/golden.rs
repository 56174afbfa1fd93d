//! `cargo xtask golden`: makes the golden files again, from pinned versions of transformers.

use anyhow::Result;

use crate::shell::{cache, command, run as run_command};

/// Installs the pinned packages into an environment outside the repository and runs the scripts.
pub fn run() -> Result<()> {
    let environment = cache()?.join("golden-venv");
    if !environment.join("bin/python").is_file() {
        run_command(command("python3 -m venv").arg(&environment))?;
    }
    let mut pip = command(&environment.join("bin/pip").to_string_lossy());
    run_command(pip.args(["install", "--requirement", "scripts/golden/requirements.txt"]))?;
    let python = environment.join("bin/python");
    for script in ["smollm2.py", "tiny.py", "tokenizer.py"] {
        run_command(command(&python.to_string_lossy()).arg(format!("scripts/golden/{script}")))?;
    }
    Ok(())
}
