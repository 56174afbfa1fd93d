//! `cargo xtask abi`: the C interface as data, and what is made of it.
//!
//! The exports make the header (a test of `crates/ffi` holds them together), the header makes
//! `include/pagedllm.abi.json`, and that makes the Zig declarations. `include/published.abi.json`
//! is the interface as it was last published: a change that would break programs built against it
//! is refused.

mod compare;
mod description;
mod header;
mod zig;

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::shell::root;
use description::Description;

/// What the interface calls itself.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    pub major: u64,
    pub minor: u64,
}

/// The version that the header has.
pub fn version() -> Result<Version> {
    let description = described()?;
    Ok(Version { major: description.abi_major, minor: description.abi_minor })
}

const HEADER: &str = "include/pagedllm.h";
const DESCRIPTION: &str = "include/pagedllm.abi.json";
const PUBLISHED: &str = "include/published.abi.json";
const ZIG: &str = "bindings/zig/pagedllm.zig";

/// Writes the description and the declarations, then checks. `--check` writes nothing; `--publish`
/// makes the interface of today the one that later ones are compared with.
pub fn run(args: &[String]) -> Result<()> {
    match args {
        [] => write(false)?,
        [flag] if flag == "--check" => {}
        [flag] if flag == "--publish" => write(true)?,
        _ => bail!("usage: cargo xtask abi [--check | --publish]"),
    }
    check()?;
    println!("the interface is compatible with {PUBLISHED}");
    Ok(())
}

fn write(publishes: bool) -> Result<()> {
    let description = described()?;
    std::fs::create_dir_all(path(ZIG).parent().context("a folder")?)?;
    std::fs::write(path(DESCRIPTION), json(&description)?)?;
    std::fs::write(path(ZIG), zig::declarations(&description))?;
    if publishes {
        let before = read(PUBLISHED).unwrap_or_default();
        if before.abi_major == description.abi_major {
            compatible(&before, &description)?;
        }
        std::fs::write(path(PUBLISHED), json(&description.without_docs())?)?;
    }
    Ok(())
}

/// Whether the committed files are those of the header, and the header may follow what was
/// published.
fn check() -> Result<()> {
    let description = described()?;
    let files = [(DESCRIPTION, json(&description)?), (ZIG, zig::declarations(&description))];
    for (file, expected) in files {
        let committed = std::fs::read_to_string(path(file)).context(file)?;
        ensure!(committed == expected, "{file} is out of date: run `cargo xtask abi`");
    }
    compatible(&read(PUBLISHED)?, &description)
}

fn compatible(before: &Description, now: &Description) -> Result<()> {
    let (before, now) = (&before.clone().without_docs(), &now.clone().without_docs());
    let breaks = compare::breaks(before, now);
    ensure!(
        breaks.is_empty(),
        "programs built against {PUBLISHED} would break; give them a new PAGEDLLM_ABI_MAJOR or \
         undo this:\n{}",
        breaks.join("\n")
    );
    let additions = compare::additions(before, now);
    ensure!(
        additions.is_empty() || now.abi_minor > before.abi_minor,
        "PAGEDLLM_ABI_MINOR must grow with these:\n{}",
        additions.join("\n")
    );
    Ok(())
}

fn path(file: &str) -> PathBuf {
    root().join(file)
}

fn described() -> Result<Description> {
    header::parse(&std::fs::read_to_string(path(HEADER))?).context(HEADER)
}

fn read(file: &str) -> Result<Description> {
    let text = std::fs::read_to_string(path(file)).context(file.to_owned())?;
    serde_json::from_str(&text).context(file.to_owned())
}

fn json(description: &Description) -> Result<String> {
    Ok(serde_json::to_string_pretty(description)? + "\n")
}

#[cfg(test)]
mod tests;
