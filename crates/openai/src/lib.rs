//! OpenAI's protocol without a network: bodies to requests, events to chunks.
//!
//! A [`Service`] takes the body of an [`Endpoint`] and gives an [`Answer`]: a JSON text that is
//! ready, one that is pulled when complete, or a stream of server-sent events that is pulled
//! piece by piece. The server and the C library call the same functions, so a client and a host
//! that send the same body get the same answer.
//!
//! This crate knows no sockets and no C. Its invariants:
//! 1. A body is checked completely before anything of it is queued.
//! 2. A plain answer is the sum of the deltas that the stream of the same request would send.
//! 3. A field either has its effect, or is refused by name, or is reported as ignored.
//! 4. Every list and nesting in a body has a limit.

#![forbid(unsafe_code)]

mod answer;
mod call;
mod chat;
mod completions;
mod error;
mod fields;
mod fold;
mod format;
mod host;
mod logprobs;
mod sampling;
mod service;
pub mod sse;
mod tokenize;
mod wire;

pub use answer::{Answer, AnswerBody, DONE, NextPayload, PlainAnswer, StreamAnswer};
pub use error::ApiError;
pub use host::HostPrompt;
pub use sampling::is_request_id;
pub use service::{Caller, Endpoint, Service, ServiceOptions};
