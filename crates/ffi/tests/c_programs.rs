//! C and C++ programs against the built library, under the address and undefined-behaviour
//! sanitizers. Skipped, loudly, where there is no C compiler.
//!
//! What embedding programs have found broken elsewhere, and the tests that hold it here:
//!
//! | case | what holds | where |
//! |---|---|---|
//! | C01 | no panic, of a call or of a thread of the library, harms the host | `misuse.c: each_call_refuses_null_and_garbage`; `panic.rs`; `engine.rs: a_panic_of_the_engines_thread_is_a_fault` |
//! | C02 | the library can be closed at any time | `reload.c`, `leave.c`; Node: `bindings/node/test` |
//! | C03, C05 | callbacks belong to one engine, get whole lines, and end with it | `host.c: logs_are_of_one_engine`, `a_server_that_is_left_logs_nothing`; `log.rs` |
//! | C04 | no thread of the library need call the host | `calls.c: one_queue_serves_many_streams`; the bindings use nothing else |
//! | C06 | all handles take all threads; what is in use is not freed | `misuse.c: many_threads_on_one_*`; `host.c: a_handle_in_use_is_not_freed`; `loom.rs`; `the_c_side_of_callbacks_and_events_has_no_race` |
//! | C07 | a forked child is told, at once | `misuse.c: a_forked_child_is_told` |
//! | C08 | no symbols but our own; two copies live in one process | `the_symbols_of_the_interface_are_exported_and_no_others`; `twins.c` |
//! | C09 | nothing of the process is changed; no SIGPIPE | `host.c: main`, `clients_that_hang_up_do_no_harm` |
//! | C10 | any order of frees; a second one is seen where memory allows | `misuse.c: frees_in_any_order`; `twice.c` |
//! | C11 | nothing of the host's is used up by a request | `many.c` |
//! | C12 | lengths, whole characters, structs that grow, C89 and C++ | `misuse.c: old_and_new_callers`; `caller.rs`; `the_header_is_c89_and_cpp` |
//! | C13 | what is passed in is copied | `host.c: inputs_are_the_callers_again` |

use std::collections::BTreeSet;
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

/// Compiles a program that links the library.
fn compile(compiler: &str, source: &str, program: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(compiler);
    command
        .args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root().join("include"))
        .args(flags)
        .arg(root().join(source))
        .arg("-o")
        .arg(program)
        .arg("-L")
        .arg(library_dir())
        .args(["-lpagedllm", "-lpthread", "-ldl", "-lm"]);
    command
}

/// Runs a program with the tiny model.
fn execute(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(root().join("tests/golden/tiny/llama")).env("LD_LIBRARY_PATH", library_dir());
    command
}

/// Compiles a program and runs it with the tiny model and `more`; it must say nothing.
fn check(compiler: &str, source: &str, flags: &[&str], more: &[&Path]) {
    if !has(compiler) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("program");
    run(compile(compiler, source, &program, flags).args(SANITIZERS));
    let said = run(execute(&program).args(more));
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
fn a_host_keeps_its_process_its_memory_and_its_callbacks() {
    check("gcc", "tests/c_abi/host.c", &["-std=gnu11"], &[]);
}

#[test]
fn a_host_may_leave_at_any_time() {
    let library = library_dir().join("libpagedllm.so");
    check("gcc", "tests/c_abi/leave.c", &["-std=gnu11"], &[&library]);
}

#[test]
fn two_copies_of_the_library_live_in_one_process() {
    let library = library_dir().join("libpagedllm.so");
    let dir = tempfile::tempdir().expect("a folder");
    let copy = dir.path().join("copy.so");
    std::fs::copy(&library, &copy).expect("a copy");
    check(
        "gcc",
        "tests/c_abi/twins.c",
        &["-std=gnu11", "-Wl,--as-needed"],
        &[&library.canonicalize().expect("the library"), &copy],
    );
}

#[test]
fn the_c_side_of_callbacks_and_events_has_no_race() {
    if !has("gcc") || !has("valgrind") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    for (source, more) in [("calls.c", None), ("host.c", Some("logs"))] {
        let program = dir.path().join("program");
        run(&mut compile("gcc", &format!("tests/c_abi/{source}"), &program, &["-std=gnu11"]));
        let supp = root().join("tests/c_abi/helgrind.supp");
        run(Command::new("valgrind")
            .args(["--tool=helgrind", "--quiet", "--error-exitcode=9"])
            // Waiting threads would else keep the one processor from those that work.
            .args(["--fair-sched=yes", "--history-level=approx"])
            .arg(format!("--suppressions={}", supp.display()))
            .arg(&program)
            .arg(root().join("tests/golden/tiny/llama"))
            .args(more)
            .env("LD_LIBRARY_PATH", library_dir()));
    }
}

#[test]
fn a_second_free_is_seen() {
    if !has("gcc") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("program");
    // No optimizer: it knows that memory after free means nothing.
    run(&mut compile("gcc", "tests/c_abi/twice.c", &program, &["-std=gnu11", "-O0"]));
    run(&mut execute(&program));
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
    run(&mut compile("g++", "bindings/cpp/example/chat.cc", &program, &["-std=c++17"]));
    let said = run(execute(&program).arg(r#"[{"role": "user", "content": "hi"}]"#));
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
            // Twice, as where two headers include it.
            let header = root().join("include/pagedllm.h");
            run(Command::new(compiler)
                .args(["-fsyntax-only", "-Wall", "-Werror", standard, "-x", language])
                .args([Path::new("-include"), &header, Path::new("-include"), &header])
                .arg("/dev/null"));
        }
    }
}

#[test]
fn the_symbols_of_the_interface_are_exported_and_no_others() {
    if !has("nm") {
        return;
    }
    let library = library_dir().join("libpagedllm.so");
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let exported: BTreeSet<&str> =
        listed.lines().filter_map(|line| line.split(' ').next_back()).collect();
    let described = std::fs::read_to_string(root().join("include/pagedllm.abi.json"));
    let described: serde_json::Value =
        serde_json::from_str(&described.expect("the description")).expect("JSON");
    let functions = described["functions"].as_array().expect("a list").iter();
    let declared: BTreeSet<&str> =
        functions.map(|function| function["name"].as_str().expect("a name")).collect();
    assert!(declared.len() > 20);
    assert_eq!(exported, declared);
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
