//! Running programs, and where things are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// Where downloads stay between runs: `PAGEDLLM_CACHE`, or `~/.cache/pagedllm`.
pub fn cache() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PAGEDLLM_CACHE") {
        return Ok(path.into());
    }
    let home = std::env::var_os("HOME").context("neither PAGEDLLM_CACHE nor HOME is set")?;
    Ok(Path::new(&home).join(".cache/pagedllm"))
}

/// Where `languages` puts what it fetches.
pub fn languages() -> Result<PathBuf> {
    Ok(cache()?.join("languages"))
}

/// Where programs are looked for: the machine's places, then those that were fetched.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if let Ok(languages) = languages() {
        path.push(":");
        path.push(languages.join("programs"));
    }
    path
}

/// Where cargo puts what it builds with a profile.
pub fn built(profile: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target).join(profile)
}

/// A command with its arguments, split at spaces.
pub fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).env("PATH", path());
    command
}

/// Runs a command; its failure is an error.
pub fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", words(command));
    let status = command.status().with_context(|| format!("can't start {}", words(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", words(command));
    }
    Ok(())
}

/// What a command prints.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("can't start {}", words(command)))?;
    if !output.status.success() {
        bail!("{} failed: {}", words(command), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a program is on the path; says so if it is not.
pub fn is_installed(program: &str) -> bool {
    let found = command("sh").args(["-c", &format!("command -v {program}")]).output();
    let is_installed = found.is_ok_and(|output| output.status.success());
    if !is_installed {
        println!("skipped: {program} is not installed");
    }
    is_installed
}

fn words(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
