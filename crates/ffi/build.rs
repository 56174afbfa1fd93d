//! Link arguments of the shared library: its soname, and that it is never unmapped.
//!
//! The loader keeps the library until the process ends, because threads of the host may hold
//! thread-local destructors that live in it. Opening it again finds the same mapping, so nothing
//! leaks.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        // The number is PAGEDLLM_ABI_MAJOR; a test compares them.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpagedllm.so.1");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
