//! Compiles `kernels/**/*.cu` to fat binaries and lists them for `kernel.rs` to embed. Without the
//! feature `cuda` it does nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What is built unless `PAGEDLLM_CUDA_ARCHS` says otherwise. The last architecture also goes in as
/// PTX, for newer devices.
const DEFAULT_ARCHS: &str = "80,89,90a";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    for name in ["PAGEDLLM_NVCC", "PAGEDLLM_CUDA_ARCHS", "CUDA_HOME", "PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rustc-env=PAGEDLLM_BUILT_ARCHS={}", archs().join(","));
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../kernels");
    println!("cargo:rerun-if-changed={}", root.display());
    let out = PathBuf::from(variable("OUT_DIR"));
    let nvcc = find_nvcc();
    let mut sources = Vec::new();
    collect(&root, "cu", &mut sources);
    sources.sort();
    let mut headers = Vec::new();
    collect(&root, "cuh", &mut headers);
    collect(&root, "h", &mut headers);
    let headers = headers.iter().map(|path| modified(path)).max();
    let headers = headers.expect("the kernels share headers");

    let mut list = String::from("&[\n");
    for source in &sources {
        let name = source.strip_prefix(&root).expect("below the root").with_extension("");
        let name = name.to_string_lossy().replace('/', "_");
        let fatbin = out.join(format!("{name}.fatbin"));
        compile(&nvcc, source, &fatbin, headers);
        list.push_str(&format!("    ({name:?}, include_bytes!({:?})),\n", fatbin.display()));
    }
    list.push(']');
    fs::write(out.join("modules.rs"), list).expect("OUT_DIR is writable");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

fn collect(directory: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("kernels/ is part of the repository") {
        let path = entry.expect("a readable directory").path();
        if path.is_dir() {
            collect(&path, extension, files);
        } else if path.extension().is_some_and(|e| e == extension) {
            files.push(path);
        }
    }
}

fn modified(path: &Path) -> std::time::SystemTime {
    fs::metadata(path).and_then(|m| m.modified()).unwrap_or(std::time::SystemTime::UNIX_EPOCH)
}

fn archs() -> Vec<String> {
    let list = env::var("PAGEDLLM_CUDA_ARCHS").unwrap_or_else(|_| DEFAULT_ARCHS.into());
    list.split([',', ';', ' '])
        .map(|arch| arch.trim().trim_start_matches("sm_").to_owned())
        .filter(|arch| !arch.is_empty())
        .collect()
}

fn compile(nvcc: &Path, source: &Path, fatbin: &Path, headers: std::time::SystemTime) {
    let archs = archs();
    // Kept objects are named by what they were built for, so a change of architectures rebuilds.
    let stamp = fatbin.with_extension("archs");
    let stamp_text = format!("{} {}", nvcc.display(), archs.join(","));
    let same = fs::read_to_string(&stamp).is_ok_and(|text| text == stamp_text);
    if same && modified(fatbin) > modified(source).max(headers) {
        return;
    }
    let mut command = Command::new(nvcc);
    command.args(["-O3", "-std=c++17", "--threads", "2", "-fatbin", "-o"]).arg(fatbin).arg(source);
    for arch in &archs {
        command.arg(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
    }
    // PTX of an `a` target runs on that one architecture only, so take the plain one.
    if let Some(last) = archs.last() {
        let plain = last.trim_end_matches(char::is_alphabetic);
        command.arg(format!("-gencode=arch=compute_{plain},code=compute_{plain}"));
    }
    let output =
        command.output().unwrap_or_else(|e| panic!("{} does not run: {e}", nvcc.display()));
    assert!(
        output.status.success(),
        "nvcc failed on {}:\n{}{}",
        source.display(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    fs::write(stamp, stamp_text).expect("OUT_DIR is writable");
}

/// `PAGEDLLM_NVCC`, then `CUDA_HOME`, then `PATH`, then what `cargo xtask cuda-toolkit` brought.
fn find_nvcc() -> PathBuf {
    if let Some(path) = env::var_os("PAGEDLLM_NVCC") {
        return path.into();
    }
    let mut candidates: Vec<PathBuf> = Vec::new();
    if let Some(home) = env::var_os("CUDA_HOME") {
        candidates.push(Path::new(&home).join("bin/nvcc"));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    candidates.extend(env::split_paths(&path).map(|directory| directory.join("nvcc")));
    candidates.push("/usr/local/cuda/bin/nvcc".into());
    if let Some(home) = env::var_os("HOME") {
        candidates.push(Path::new(&home).join(".cache/pagedllm/cuda-13.0/nvidia/cu13/bin/nvcc"));
    }
    candidates.into_iter().find(|path| path.is_file()).unwrap_or_else(|| {
        panic!(
            "the feature cuda needs nvcc 13: set PAGEDLLM_NVCC or CUDA_HOME, or run \
             `cargo xtask cuda-toolkit`"
        )
    })
}
