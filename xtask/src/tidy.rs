//! `cargo xtask tidy`: rules that the compiler does not know. Layers, file lengths, where
//! `unsafe` may stand, words that do not belong, licences of dependencies.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell::{command, output};
use crate::snippets;

/// Which crates of this repository a crate may use; dev-dependencies are free. The same table
/// stands in docs/architecture.md.
const LAYERS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("kv", &["core"]),
    ("backend", &["core"]),
    ("checkpoint", &["core"]),
    ("tokenizer", &["core"]),
    ("scheduler", &["kv", "core"]),
    ("models", &["backend", "checkpoint", "core"]),
    ("cpu", &["backend", "core"]),
    ("cuda", &["backend", "core"]),
    ("engine", &["scheduler", "kv", "core"]),
    ("executor", &["engine", "models", "checkpoint", "cpu", "cuda", "backend", "core"]),
    ("pagedllm", &["engine", "executor", "tokenizer", "checkpoint", "core"]),
    ("openai", &["pagedllm", "core"]),
    ("server", &["openai", "pagedllm"]),
    // `sim` only with the feature test-executor, which no shipped library has.
    ("ffi", &["server", "openai", "pagedllm", "sim"]),
    ("cli", &["server", "openai", "pagedllm"]),
    ("sim", &["engine", "scheduler", "kv", "core"]),
    ("xtask", &[]),
];

/// Folders (ending in `/`) and files that may hold `unsafe`.
const UNSAFE: &[&str] = &[
    "crates/cpu/src/simd/",
    "crates/cpu/src/threads.rs",
    "crates/cpu/src/workspace.rs",
    "crates/cpu/tests/allocations.rs",
    "crates/cuda/src/launch.rs",
    "crates/cuda/src/launch/",
    "crates/cuda/src/device.rs",
    "crates/cuda/src/graph.rs",
    "crates/cuda/src/nccl.rs",
    "crates/cuda/src/step.rs",
    "crates/cuda/src/workspace.rs",
    "crates/cuda/src/nvml.rs",
    "crates/checkpoint/src/mmap.rs",
    "crates/ffi/src/",
];

/// Most lines of a source file; tests and the scalar reference are exempt.
const MAX_LINES: usize = 700;
/// Longer because they say one thing each, in order.
const LONG_FILES: &[&str] = &["crates/backend/src/reference.rs"];

/// Places of one machine that must not be in the tree. In pieces, so that this file passes.
const FORBIDDEN: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/."), concat!("/tmp/ba", "sh")];

/// Code that the rule of `UNSAFE` is about. In pieces, so that this file passes.
const UNSAFE_FORMS: [&str; 3] =
    [concat!("uns", "afe {"), concat!("uns", "afe fn"), concat!("uns", "afe impl")];

const LICENSES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Zlib",
    "CC0-1.0",
    "MIT-0",
    "Unlicense",
    "BSL-1.0",
    "0BSD",
    "CDLA-Permissive-2.0",
    "MPL-2.0",
];

/// Checks everything and lists all faults.
pub fn run() -> Result<()> {
    let mut faults = Vec::new();
    let metadata: Value =
        serde_json::from_str(&output(&mut command("cargo metadata --format-version 1"))?)?;
    check_layers(&metadata, &mut faults)?;
    check_licenses(&metadata, &mut faults)?;
    for path in output(&mut command("git ls-files --cached --others --exclude-standard"))?.lines() {
        check_file(path, &mut faults);
    }
    for fault in &faults {
        println!("{fault}");
    }
    if !faults.is_empty() {
        bail!("{} faults", faults.len());
    }
    println!("tidy");
    Ok(())
}

fn packages(metadata: &Value) -> Result<&Vec<Value>> {
    metadata["packages"].as_array().context("cargo metadata lists packages")
}

fn short(name: &str) -> &str {
    name.strip_prefix("pagedllm-").unwrap_or(name)
}

fn check_layers(metadata: &Value, faults: &mut Vec<String>) -> Result<()> {
    let allowed: HashMap<&str, &[&str]> = LAYERS.iter().copied().collect();
    for package in packages(metadata)?.iter().filter(|package| package["source"].is_null()) {
        let name = short(package["name"].as_str().unwrap_or_default());
        let Some(may) = allowed.get(name) else {
            faults.push(format!("crate {name} stands in no layer"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = short(dependency["name"].as_str().unwrap_or_default());
            let is_ours = dependency["source"].is_null();
            if is_ours && dependency["kind"].is_null() && !may.contains(&used) {
                faults.push(format!("crate {name} may not use {used}"));
            }
        }
    }
    Ok(())
}

fn check_licenses(metadata: &Value, faults: &mut Vec<String>) -> Result<()> {
    for package in packages(metadata)? {
        let name = package["name"].as_str().unwrap_or_default();
        let license = package["license"].as_str().unwrap_or_default();
        let fits = |all: &str| {
            all.split(" AND ").all(|one| LICENSES.contains(&one.trim().trim_matches(['(', ')'])))
        };
        if !license.replace('/', " OR ").split(" OR ").any(fits) {
            faults.push(format!("dependency {name} has the licence `{license}`"));
        }
    }
    Ok(())
}

fn check_file(path: &str, faults: &mut Vec<String>) {
    // Binary files and files removed in the working tree have no text to check.
    let Ok(text) = std::fs::read_to_string(path) else { return };
    if path != "Cargo.lock" {
        for word in FORBIDDEN {
            if let Some(line) = text.lines().position(|line| line.contains(word)) {
                faults.push(format!("{path}:{}: a path of one machine", line + 1));
            }
        }
    }
    if path.ends_with(".md")
        && let Some(fault) = snippets::fault(&text)
    {
        faults.push(format!("{path}: {fault}"));
    }
    let is_source = matches!(
        Path::new(path).extension().and_then(|ext| ext.to_str()),
        Some("rs" | "cu" | "cuh")
    );
    if !is_source {
        return;
    }
    let lines = text.lines().count();
    if lines > MAX_LINES && !path.contains("/tests/") && !LONG_FILES.contains(&path) {
        faults.push(format!("{path}: {lines} lines; at most {MAX_LINES}"));
    }
    let is_allowed = UNSAFE
        .iter()
        .any(|place| if place.ends_with('/') { path.starts_with(place) } else { path == *place });
    if path.ends_with(".rs") && !is_allowed {
        for (index, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if UNSAFE_FORMS.iter().any(|form| code.contains(form)) {
                faults.push(format!("{path}:{}: unsafe code outside its modules", index + 1));
            }
        }
    }
}
