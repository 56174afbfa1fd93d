//! C and C++ programs against the built library, under the address and undefined-behaviour
//! sanitizers. Skipped, loudly, where there is no C compiler.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const SANITIZERS: [&str; 3] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder with `libpagedllm.so` and, as the loader looks for it, `libpagedllm.so.1`. Cargo
/// builds no C library for the tests of its crate, so this does.
fn library_dir() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let test = std::env::current_exe().expect("this program has a path");
        let profile_dir = test.ancestors().nth(2).expect("target/<profile>/deps/<test>");
        let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(profile) => profile,
        };
        let target_dir = profile_dir.parent().expect("a target folder");
        run(Command::new(env!("CARGO"))
            .args(["build", "--offline", "--package", "pagedllm-ffi", "--profile", profile])
            .arg("--target-dir")
            .arg(target_dir)
            .current_dir(root()));
        let dir = tempfile::tempdir().expect("a folder");
        let built = profile_dir.join("libpagedllm.so");
        for name in ["libpagedllm.so", "libpagedllm.so.1"] {
            std::os::unix::fs::symlink(&built, dir.path().join(name)).expect("a link");
        }
        dir
    });
    dir.path()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    said + &String::from_utf8_lossy(&output.stdout)
}

fn has(compiler: &str) -> bool {
    let found = Command::new(compiler).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: no {compiler}");
    }
    found
}

/// Compiles a program and runs it with the tiny model and `more`; it must say nothing.
fn check(compiler: &str, source: &str, flags: &[&str], more: &[&Path]) {
    if !has(compiler) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("program");
    run(Command::new(compiler)
        .args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root().join("include"))
        .args(SANITIZERS)
        .args(flags)
        .arg(root().join(source))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(library_dir())
        .args(["-lpagedllm", "-lpthread", "-ldl"]));
    let said = run(Command::new(&program)
        .arg(root().join("tests/golden/tiny/llama"))
        .args(more)
        .env("LD_LIBRARY_PATH", library_dir()));
    assert_eq!(said, "", "the library or the program wrote something");
}

#[test]
fn calls_do_what_they_say() {
    check("gcc", "tests/c_abi/calls.c", &["-std=gnu11"], &[]);
}

#[test]
fn misuse_ends_in_a_status() {
    check("gcc", "tests/c_abi/misuse.c", &["-std=gnu11"], &[]);
}

#[test]
fn one_queue_serves_ten_thousand_streams() {
    check("gcc", "tests/c_abi/many.c", &["-std=gnu11"], &[]);
}

#[test]
fn the_static_library_links_too() {
    if !has("gcc") {
        return;
    }
    let shared = library_dir().join("libpagedllm.so").canonicalize().expect("the library");
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("program");
    run(Command::new("gcc")
        .args(["-std=gnu11", "-I"])
        .arg(root().join("include"))
        .arg(root().join("tests/c_abi/calls.c"))
        .arg(shared.with_extension("a"))
        .arg("-o")
        .arg(&program)
        .args(["-lpthread", "-ldl", "-lm"]));
    run(Command::new(&program).arg(root().join("tests/golden/tiny/llama")));
}

#[test]
fn published_layouts_and_numbers_stay() {
    if has("gcc") {
        run(Command::new("gcc")
            .args(["-fsyntax-only", "-std=c11", "-I"])
            .arg(root().join("include"))
            .arg(root().join("tests/c_abi/layout.c")));
    }
}

#[test]
fn the_library_loads_and_unloads_a_hundred_times() {
    let library = library_dir().join("libpagedllm.so");
    check("gcc", "tests/c_abi/reload.c", &["-std=gnu11", "-Wl,--as-needed"], &[&library]);
}

#[test]
fn the_cpp_example_streams() {
    if !has("g++") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("program");
    run(Command::new("g++")
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root().join("include"))
        .arg(root().join("bindings/cpp/example/chat.cc"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(library_dir())
        .arg("-lpagedllm"));
    let said = run(Command::new(&program)
        .arg(root().join("tests/golden/tiny/llama"))
        .arg(r#"[{"role": "user", "content": "hi"}]"#)
        .env("LD_LIBRARY_PATH", library_dir()));
    assert!(said.len() > 1, "an answer");
}

#[test]
fn the_cpp_layer_streams_cancels_and_throws() {
    check("g++", "tests/c_abi/cpp.cc", &["-std=c++20"], &[]);
}

#[test]
fn the_header_is_c89_and_cpp() {
    for (compiler, language, standard) in [("gcc", "c", "-std=c89"), ("g++", "c++", "-std=c++11")] {
        if has(compiler) {
            run(Command::new(compiler)
                .args(["-fsyntax-only", "-Wall", "-Werror", standard, "-x", language])
                .arg(root().join("include/pagedllm.h")));
        }
    }
}

#[test]
fn only_symbols_of_the_interface_are_exported() {
    if !has("nm") {
        return;
    }
    let library = library_dir().join("libpagedllm.so");
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert!(names.contains(&"pagedllm_engine_open"), "{names:?}");
    for name in names {
        assert!(name.starts_with("pagedllm_"), "{name} is exported");
    }
}

#[test]
fn the_library_stays_mapped_and_has_its_soname() {
    if !has("readelf") {
        return;
    }
    let library = library_dir().join("libpagedllm.so");
    let dynamic = run(Command::new("readelf").arg("-d").arg(library));
    assert!(dynamic.contains("[libpagedllm.so.1]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}
