//! The committed header is what cbindgen makes of the exports. `PAGEDLLM_BLESS=1` rewrites it.

use std::path::Path;

fn generated() -> String {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).expect("config");
    let bindings = cbindgen::Builder::new()
        .with_src(crate_dir.join("src/lib.rs"))
        .with_config(config)
        .generate()
        .expect("the exports are readable");
    let mut header = Vec::new();
    bindings.write(&mut header);
    String::from_utf8(header).expect("UTF-8")
}

#[test]
fn the_committed_header_is_that_of_the_exports() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/pagedllm.h");
    let header = generated();
    if std::env::var_os("PAGEDLLM_BLESS").is_some() {
        std::fs::write(&path, &header).expect("the header can be written");
    }
    let committed = std::fs::read_to_string(&path).expect("include/pagedllm.h exists");
    assert!(
        committed == header,
        "include/pagedllm.h is out of date: run this test with PAGEDLLM_BLESS=1"
    );
}

#[test]
fn the_soname_carries_the_major_version() {
    let build = include_str!("../build.rs");
    let major = generated()
        .lines()
        .find_map(|line| line.strip_prefix("#define PAGEDLLM_ABI_MAJOR ")?.parse::<u32>().ok())
        .expect("the header has the version");
    assert!(build.contains(&format!("libpagedllm.so.{major}\"")), "build.rs");
}
