//! Tests of the Go, Node and Python bindings, against the library of this checkout: those of each
//! binding on a tiny model, then those of tests/bindings on a real one.

use std::path::Path;

use anyhow::Result;

use crate::shell::{built, command, is_installed, root, run as run_command};
use crate::{debian, languages, models};

/// Builds the library and the server, and runs the tests of every binding whose language is
/// installed.
pub fn run() -> Result<()> {
    let model = models::smollm2()?;
    languages::install()?;
    debian::install(&[("g++", "g++"), ("chromium", "chromium")])?;
    run_command(&mut command(
        "cargo build --profile checked --package pagedllm-ffi --package pagedllm-cli",
    ))?;
    let folder = built("checked");
    let library = folder.join("libpagedllm.so");
    let link = folder.join("libpagedllm.so.1");
    if std::fs::symlink_metadata(&link).is_err() {
        std::os::unix::fs::symlink("libpagedllm.so", &link)?;
    }
    own_tests(&folder, &library)?;
    if is_installed("python3") {
        for test in ["examples", "same_answers", "packages", "services"] {
            run_command(
                command(&format!("python3 tests/bindings/{test}.py"))
                    .args([Path::new("--library"), &library, Path::new("--model"), &model])
                    .args([Path::new("--binary"), &folder.join("pagedllm")]),
            )?;
        }
    }
    Ok(())
}

/// The tests that each binding has for itself.
fn own_tests(folder: &Path, library: &Path) -> Result<()> {
    let bindings = root().join("bindings");
    if is_installed("go") {
        for line in ["go vet ./...", "go test -race -count=1 ./..."] {
            run_command(
                command(line)
                    .current_dir(bindings.join("go"))
                    .env("CGO_LDFLAGS", format!("-L{}", folder.display()))
                    .env("LD_LIBRARY_PATH", folder),
            )?;
        }
        // The library inside of the program, with no folder to find it in.
        run_command(
            command("go test -count=1 -tags pagedllm_static ./...")
                .current_dir(bindings.join("go"))
                .env("CGO_LDFLAGS", format!("-L{}", folder.display())),
        )?;
    }
    if is_installed("python3") {
        run_command(
            command("python3 -m unittest discover tests")
                .current_dir(bindings.join("python"))
                .env("PAGEDLLM_LIBRARY", library),
        )?;
    }
    if is_installed("npm") {
        let node = bindings.join("node");
        run_command(command("npm install --no-audit --no-fund --silent").current_dir(&node))?;
        run_command(command("npm test").current_dir(&node).env("PAGEDLLM_LIBRARY", library))?;
    }
    Ok(())
}
