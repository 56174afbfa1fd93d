//! The pagedllm program.
fn main() {}
