//! The Rust API of pagedllm: text in, text out.
