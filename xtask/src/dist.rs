//! `cargo xtask dist`: one archive of the library and the program for this platform, with what
//! pkg-config and CMake need to find it. It works from any folder that it is unpacked to.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::shell::{built, command, is_installed, output, root, run as run_command};
use crate::{abi, cuda_toolkit, debian};

/// The stripped library without CUDA stays below this.
const MAX_LIBRARY_BYTES: u64 = 25_000_000;

/// Files that are taken as they are, and the folder they go to.
const FILES: &[(&str, &str)] = &[
    ("include/pagedllm.h", "include"),
    ("include/pagedllm.hpp", "include"),
    ("include/pagedllm.abi.json", "share/pagedllm"),
    ("bindings/cpp/cmake/pagedllm-config.cmake", "lib/cmake/pagedllm"),
    ("README.md", "share/doc/pagedllm"),
    ("CHANGELOG.md", "share/doc/pagedllm"),
    ("docs/c-api.md", "share/doc/pagedllm"),
    ("LICENSE-MIT", "share/doc/pagedllm"),
    ("LICENSE-APACHE", "share/doc/pagedllm"),
];

/// Files with `@VERSION@` in them.
const TEMPLATES: &[(&str, &str)] = &[
    ("bindings/cpp/pagedllm.pc.in", "lib/pkgconfig/pagedllm.pc"),
    ("bindings/cpp/pagedllm-static.pc.in", "lib/pkgconfig/pagedllm-static.pc"),
    (
        "bindings/cpp/cmake/pagedllm-config-version.cmake.in",
        "lib/cmake/pagedllm/pagedllm-config-version.cmake",
    ),
];

/// Builds a release and packs it; `--cuda` makes it run on all supported GPUs too. `--checked`
/// packs the build that tests use.
pub fn run(args: &[String]) -> Result<()> {
    let (mut has_cuda, mut profile) = (false, "release");
    for arg in args {
        match arg.as_str() {
            "--cuda" => has_cuda = true,
            "--checked" => profile = "checked",
            _ => bail!("usage: cargo xtask dist [--cuda] [--checked]"),
        }
    }
    let mut build = command("cargo build --package pagedllm-ffi --package pagedllm-cli --profile");
    build.arg(profile);
    if has_cuda {
        cuda_toolkit::run(&[])?;
        build.args(["--features", "pagedllm-ffi/cuda,pagedllm-cli/cuda"]);
    }
    run_command(&mut build)?;
    let folder = built("dist");
    std::fs::create_dir_all(&folder)?;
    let name =
        format!("pagedllm-{}-{}{}", version(), platform(), if has_cuda { "-cuda" } else { "" });
    let prefix = folder.join(&name);
    if prefix.exists() {
        std::fs::remove_dir_all(&prefix)?;
    }
    stage(&built(profile), &prefix)?;
    let library = bytes(&prefix.join("lib/libpagedllm.so"))?;
    ensure!(
        has_cuda || profile != "release" || library < MAX_LIBRARY_BYTES,
        "libpagedllm.so has {library} bytes; at most {MAX_LIBRARY_BYTES}"
    );
    let archive = folder.join(format!("{name}.tar.gz"));
    run_command(
        command("tar --sort=name --owner=0 --group=0 --numeric-owner -czf")
            .arg(&archive)
            .arg("-C")
            .arg(&folder)
            .arg(&name),
    )?;
    for file in ["lib/libpagedllm.so", "lib/libpagedllm.a", "bin/pagedllm"] {
        println!("{:>12} bytes  {file}", bytes(&prefix.join(file))?);
    }
    println!("{:>12} bytes  {}", bytes(&archive)?, archive.display());
    check(&archive)
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn platform() -> String {
    format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH)
}

fn bytes(file: &Path) -> Result<u64> {
    Ok(std::fs::metadata(file).with_context(|| file.display().to_string())?.len())
}

/// Puts what was built in `from` into a fresh folder as it is installed: stripped, with links.
fn stage(from: &Path, prefix: &Path) -> Result<()> {
    let abi = abi::version()?;
    let real = format!("libpagedllm.so.{}.{}", abi.major, abi.minor);
    let binaries = [
        ("libpagedllm.so", format!("lib/{real}"), "--strip-unneeded"),
        ("libpagedllm.a", "lib/libpagedllm.a".to_owned(), "--strip-debug"),
        ("pagedllm", "bin/pagedllm".to_owned(), "--strip-all"),
    ];
    for folder in ["bin", "include", "lib/pkgconfig", "lib/cmake/pagedllm"] {
        std::fs::create_dir_all(prefix.join(folder))?;
    }
    for (name, to, strip) in binaries {
        let to = prefix.join(to);
        std::fs::copy(from.join(name), &to).with_context(|| name.to_owned())?;
        run_command(command("strip").arg(strip).arg(&to))?;
    }
    symlink(&real, prefix.join(format!("lib/libpagedllm.so.{}", abi.major)))?;
    symlink(format!("libpagedllm.so.{}", abi.major), prefix.join("lib/libpagedllm.so"))?;
    for (file, folder) in FILES {
        let (from, folder) = (root().join(file), prefix.join(folder));
        std::fs::create_dir_all(&folder)?;
        let name = from.file_name().context("a file")?;
        std::fs::copy(&from, folder.join(name)).with_context(|| (*file).to_owned())?;
    }
    for (file, to) in TEMPLATES {
        let text =
            std::fs::read_to_string(root().join(file)).with_context(|| (*file).to_owned())?;
        std::fs::write(prefix.join(to), text.replace("@VERSION@", version()))?;
    }
    Ok(())
}

/// Unpacks an archive to a folder of its own, and there builds and runs programs that find the
/// library by pkg-config and by CMake, shared and static.
fn check(archive: &Path) -> Result<()> {
    debian::install(&[("pkg-config", "pkg-config"), ("cmake", "cmake")])?;
    let folder = archive.with_extension("").with_extension("check");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    run_command(command("tar -xzf").arg(archive).arg("-C").arg(&folder))?;
    let name = archive.file_stem().map(Path::new).and_then(Path::file_stem).context("a name")?;
    let prefix = folder.join(name);
    let model = root().join("tests/golden/tiny/llama");
    let consumers = [by_pkg_config(&prefix, &folder)?, by_cmake(&prefix, &folder)?];
    for program in consumers.iter().flatten() {
        run_command(Command::new(program).arg(&model).env("LD_LIBRARY_PATH", prefix.join("lib")))?;
    }
    run_command(Command::new(prefix.join("bin/pagedllm")).arg("--version"))?;
    println!("{} programs were built and run against {}", 2 * consumers.len(), archive.display());
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn by_pkg_config(prefix: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut programs = Vec::new();
    if !is_installed("pkg-config") {
        return Ok(programs);
    }
    for package in ["pagedllm", "pagedllm-static"] {
        let flags = output(
            command("pkg-config --cflags --libs")
                .arg(package)
                .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
        )?;
        let program = folder.join(format!("c-{package}"));
        run_command(
            command("gcc -std=gnu11 -Wall -Wextra -Werror")
                .arg(root().join("tests/c_abi/calls.c"))
                .args(flags.split_whitespace())
                .arg("-o")
                .arg(&program),
        )?;
        programs.push(program);
    }
    Ok(programs)
}

fn by_cmake(prefix: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    if !is_installed("cmake") {
        return Ok(Vec::new());
    }
    let build = folder.join("cmake");
    run_command(
        command("cmake -DCMAKE_BUILD_TYPE=Release -S")
            .arg(root().join("tests/package"))
            .arg("-B")
            .arg(&build)
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())),
    )?;
    run_command(command("cmake --build").arg(&build))?;
    Ok(["uses_shared", "uses_static"].map(|name| build.join(name)).to_vec())
}
