//! The hyper server: OpenAI's endpoints over HTTP/1.1, and what operating them takes.
//!
//! [`Server::start`] serves one model from threads of its own and returns a [`ServerHandle`]. It
//! sets no signal handlers and no logger; a program that wants those brings them. The crate knows
//! HTTP and nothing of JSON bodies, which `openai` reads, nor of devices and blocks.
//!
//! # Invariants
//! 1. Nothing of a body is read before the caller has shown a key, where keys are set.
//! 2. Everything that a client sends has a limit in size and in time.
//! 3. A client that goes away takes its requests with it: answers are dropped, which cancels.
//! 4. An error is always an HTTP status and OpenAI's error object.

#![forbid(unsafe_code)]

mod auth;
mod cors;
mod limits;
mod metrics;
mod options;
mod routes;
mod server;
mod shutdown;
mod stream;

pub use metrics::engine_metrics;
pub use options::{SERVER_OPTIONS, ServerOptions};
pub use server::{Server, ServerError, ServerHandle};
