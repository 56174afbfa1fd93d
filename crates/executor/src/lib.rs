//! From configuration to a running device: picks the backend, loads the model, sizes the KV
//! cache, and runs steps.

mod device;
mod local;
mod open;
mod options;
mod sizing;

pub use local::LocalExecutor;
pub use open::{GpuMonitor, LoadProgress, OpenError, Opened, open};
pub use options::{Device, ExecutorOptions, KvCacheDType, ModelDType};
pub use pagedllm_cuda::GpuStats;
