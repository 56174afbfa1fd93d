//! `cargo xtask device-pack`: what a GPU machine without cargo needs, in one folder: the program,
//! the tests of the device, the step benchmark, their inputs, and a script for each use. Built for
//! sm_90a alone and stripped, so that the folder stays small. `--model` puts SmolLM2 beside it, in
//! two parts or cut to some layers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::shell::{built, command, output, run as run_command};
use crate::{cuda_toolkit, gguf_cut, models};

/// What is compiled, unless `PAGEDLLM_CUDA_ARCHS` says otherwise.
const ARCHS: &str = "sm_90a";
/// Most bytes of the folder, and of each part of the model.
const MAX_BYTES: u64 = 60 * 1000 * 1000;

/// The targets; the program comes first.
const TARGETS: &str = "--package pagedllm-cli --package pagedllm-cuda --package pagedllm-executor \
    --features pagedllm-cli/cuda,pagedllm-cuda/cuda,pagedllm-executor/cuda --bin pagedllm \
    --test conformance --test products --test steps --test fault --test golden \
    --bench step_time --example logits";

const SCRIPTS: [(&str, &str); 7] = [
    (
        "tests.sh",
        "# Every verb against the scalar reference, products, whole steps, golden tokens, faults.\n\
         for test in conformance products steps golden fault; do ./$test \"$@\"; done\n",
    ),
    (
        "sanitize.sh",
        "# The same under compute-sanitizer, by default memcheck and then racecheck: a process for each\n\
         # test, all at once. The library's kernels are not ours to check.\n\
         foreign='nvjet|cublas|cutlass|xmma|gemm|gemv|splitK'\n\
         rm -f -- *check-*.log\n\
         names() { for test in conformance products steps; do ./$test --list | sed -n \"s/: test$/ $test/p\"; done; }\n\
         for tool in ${@:-memcheck racecheck}; do\n  while read -r name test; do\n    \
         (compute-sanitizer --tool \"$tool\" --kernel-name-exclude \"regex=$foreign\" --error-exitcode 1 \
         \"./$test\" --exact \"$name\" > \"$tool-$test-$name.log\" 2>&1) &\n  done < <(names)\n  wait\ndone\n\
         grep -H -E '^test result|SUMMARY' -- *check-*.log || true\n\
         clean=$(grep -l -e 'ERROR SUMMARY: 0 errors' -e '(0 errors, 0 warnings)' -- *check-*.log | wc -l)\n\
         all=$(ls -- *check-*.log | wc -l)\necho \"$clean of $all clean\"\n\
         [ \"$clean\" = \"$all\" ] && ! grep -l 'test result: FAILED' -- *check-*.log\n",
    ),
    ("steps.sh", "# Milliseconds of single steps: 8b, 1b, or both.\n./step_time \"$@\"\n"),
    (
        "serving.sh",
        "# Time to ready and load over HTTP; for the 1B shape: --shape shapes/llama-3.2-1b\n\
         python3 gpu/serving.py --program ./pagedllm \"$@\"\n",
    ),
    (
        "load.sh",
        "# A checkpoint of full size through the loader: load.sh shapes/llama-3.1-8b\n\
         python3 gpu/load_time.py --program ./pagedllm --shape \"$@\"\n",
    ),
    (
        "logits.sh",
        "# Logits of four layers of a shape against transformers: logits.sh shapes/llama-3.1-8b\n\
         python3 gpu/compare_logits.py --program ./logits --shape \"$@\"\n",
    ),
    (
        "smollm2.sh",
        "# Greedy texts in float32 on GPU and CPU, which must be equal: smollm2.sh MODEL.gguf\n\
         ask() {\n  ./pagedllm run \"$1\" --device \"$2\" --dtype float32 --temperature 0 \
         --max-tokens 200 \"$3\"\n}\n\
         for prompt in 'What is gravity?' 'Write a poem about rain.' 'Explain how a bicycle stays upright.' \\\n  \
         'List ten animals.' 'Schreibe einen Satz über Berge.' 'def fibonacci(n):'; do\n  \
         ask \"$1\" cpu \"$prompt\" > cpu.txt\n  ask \"$1\" cuda \"$prompt\" > cuda.txt\n  \
         cmp cpu.txt cuda.txt\n  echo \"equal, $(wc -c < cuda.txt) bytes: $prompt\"\ndone\n",
    ),
];

/// Runs the command: `[--model split|LAYERS]`.
pub fn run(args: &[String]) -> Result<()> {
    let folder = built("device-pack");
    match args {
        [] => pack(&folder),
        [flag, how] if flag == "--model" && how == "split" => split_model(),
        [flag, layers] if flag == "--model" => {
            cut_model(layers.parse().context("--model takes `split` or a number of layers")?)
        }
        _ => bail!("usage: cargo xtask device-pack [--model split|LAYERS]"),
    }
}

fn pack(folder: &Path) -> Result<()> {
    cuda_toolkit::run(&[])?;
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    for (name, path) in build()? {
        let to = folder.join(&name);
        fs::copy(&path, &to).with_context(|| path.display().to_string())?;
        run_command(command("strip").arg(&to))?;
    }
    copy_folder(Path::new("tests/golden/tiny"), &folder.join("goldens/tiny"))?;
    copy_folder(Path::new("benches/shapes"), &folder.join("shapes"))?;
    copy_folder(Path::new("benches/gpu"), &folder.join("gpu"))?;
    for (name, text) in SCRIPTS {
        let path = folder.join(name);
        let goldens = "export PAGEDLLM_GOLDENS=\"$PWD/goldens\"\n";
        let text = format!("#!/bin/bash\nset -eu\ncd \"$(dirname \"$0\")\"\n{goldens}{text}");
        fs::write(&path, text)?;
        run_command(command("chmod +x").arg(&path))?;
    }
    let bytes = report(folder)?;
    ensure!(bytes <= MAX_BYTES, "{bytes} bytes; at most {MAX_BYTES} travel at once");
    Ok(())
}

/// Builds the targets: names and paths of what came out.
fn build() -> Result<Vec<(String, PathBuf)>> {
    let archs = std::env::var("PAGEDLLM_CUDA_ARCHS").unwrap_or_else(|_| ARCHS.into());
    let line = format!("cargo build --release {TARGETS} --message-format json-render-diagnostics");
    println!("$ PAGEDLLM_CUDA_ARCHS={archs} {line}");
    let messages = output(command(&line).env("PAGEDLLM_CUDA_ARCHS", archs))?;
    let mut found = Vec::new();
    for message in messages.lines() {
        let message: Value = serde_json::from_str(message)?;
        let name = message["target"]["name"].as_str();
        if let (Some(name), Some(path)) = (name, message["executable"].as_str()) {
            found.push((name.to_owned(), path.into()));
        }
    }
    ensure!(!found.is_empty(), "cargo built no program");
    Ok(found)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_folder(&from, &to)?;
        } else {
            fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

/// Prints the size of everything in a folder; returns the sum.
fn report(folder: &Path) -> Result<u64> {
    let mut sizes = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        sizes.push((size_of(&entry.path())?, entry.file_name().to_string_lossy().into_owned()));
    }
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let total = sizes.iter().map(|(bytes, _)| bytes).sum();
    for (bytes, name) in &sizes {
        println!("{bytes:>12}  {name}");
    }
    println!("{total:>12}  {}", folder.display());
    Ok(total)
}

fn size_of(path: &Path) -> Result<u64> {
    if !path.is_dir() {
        return Ok(fs::metadata(path)?.len());
    }
    fs::read_dir(path)?.map(|entry| size_of(&entry?.path())).sum()
}

/// SmolLM2's file in two folders, `device-model-1` and `-2`; `cat` puts it together again.
fn split_model() -> Result<()> {
    let bytes = fs::read(models::smollm2()?)?;
    let half = bytes.len().div_ceil(2);
    for (part, bytes) in (1..).zip(bytes.chunks(half)) {
        let folder = built(&format!("device-model-{part}"));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("smollm2.gguf.{part}")), bytes)?;
        report(&folder)?;
    }
    println!("there: cat device-model-*/smollm2.gguf.* > smollm2.gguf");
    Ok(())
}

/// SmolLM2's file without the layers from `layers` on, in the folder `device-model-cut`.
fn cut_model(layers: u32) -> Result<()> {
    let bytes = fs::read(models::smollm2()?)?;
    let cut = gguf_cut::cut(&bytes, layers)?;
    let folder = built("device-model-cut");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("smollm2.gguf"), cut)?;
    let bytes = report(&folder)?;
    ensure!(bytes <= MAX_BYTES, "{bytes} bytes; at most {MAX_BYTES} travel at once");
    Ok(())
}
