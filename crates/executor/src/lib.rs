//! From configuration to a running device: picks the backend, loads the model, sizes the KV
//! cache, and runs steps.

mod local;
mod open;
mod options;
mod sizing;

pub use local::LocalExecutor;
pub use open::{LoadProgress, OpenError, Opened, open};
pub use options::{Device, ExecutorOptions, KvCacheDType, ModelDType};
