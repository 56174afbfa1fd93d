//! The CUDA backend.
//!
//! The nouns: a `CudaBackend` is one device with one stream; a step is a batch at fixed
//! addresses; verbs are launches in program order. Kernels are in `kernels/`, compiled at build
//! time and embedded. The driver and cuBLASLt are opened at run time.
//!
//! Without the feature `cuda` nothing of this is built, and [`available`] says no.

mod monitor;
mod options;

#[cfg(feature = "cuda")]
mod backend;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod dispatch;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
mod kernel;
#[cfg(feature = "cuda")]
mod kv;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod linear;
#[cfg(feature = "cuda")]
mod load;
#[cfg(feature = "cuda")]
mod nvml;
#[cfg(feature = "cuda")]
mod plan;
#[cfg(feature = "cuda")]
mod probe;
#[cfg(feature = "cuda")]
mod sample;
#[cfg(feature = "cuda")]
mod step;
#[cfg(feature = "cuda")]
mod verbs;
#[cfg(feature = "cuda")]
mod weights;
#[cfg(feature = "cuda")]
mod workspace;

#[cfg(feature = "cuda")]
pub use backend::CudaBackend;
#[cfg(feature = "cuda")]
pub use device::check_available;
#[cfg(feature = "cuda")]
pub use kv::KvCache;
#[cfg(feature = "cuda")]
pub use linear::{Linear, Norm, Vocab};
#[cfg(feature = "cuda")]
pub use load::Attention;
pub use monitor::GpuStats;
#[cfg(feature = "cuda")]
pub use nvml::Monitor;
pub use options::CudaOptions;
#[cfg(feature = "cuda")]
pub use sample::Sampled;
#[cfg(feature = "cuda")]
pub use step::Step;
#[cfg(feature = "cuda")]
pub use workspace::Tensor;

/// Whether this build can use a CUDA device and the machine has one.
#[must_use]
pub fn available() -> bool {
    check_available().is_ok()
}

/// Whether this build can use a CUDA device and the machine has one.
///
/// # Errors
/// Why not.
#[cfg(not(feature = "cuda"))]
pub fn check_available() -> Result<(), pagedllm_backend::DeviceError> {
    let reason = "this program was built without the feature cuda";
    Err(pagedllm_backend::DeviceError::Unsupported(reason.into()))
}
