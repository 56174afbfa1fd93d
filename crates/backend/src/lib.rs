//! The seam between models and devices: the verbs that a decoder-only transformer needs, their
//! scalar reference, and the suite that checks every backend against it.
//!
//! It knows no model, no scheduler and no text.

mod attention;
mod backend;
pub mod conformance;
pub mod dequantize;
mod dummy;
mod reference;
pub mod sampler;

pub use attention::{Activation, AttentionSpec, Rope};
pub use backend::{Backend, DeviceError, WorkspaceSpec};
pub use dummy::DummyMatrix;
pub use reference::Reference;
