//! What the backend is opened with.

use pagedllm_core::DType;

/// How to open a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Number of the device, as the driver counts the visible ones.
    pub device_ordinal: usize,
    /// Element type of weights and activations: F32, F16 or BF16. The residual stream is f32
    /// always.
    pub dtype: DType,
    /// Element type of the KV cache: F32, F16 or BF16.
    pub kv_dtype: DType,
    /// Issue every step kernel by kernel, without recorded graphs.
    pub enforce_eager: bool,
    /// Numbers of sequences for which decode steps are recorded, ascending. A step is padded to
    /// the next one; larger steps run without a graph.
    pub graph_batch_sizes: Vec<usize>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        let steps = (1..=2).chain((4..=8).step_by(4)).chain((16..=256).step_by(8));
        Self {
            device_ordinal: 0,
            dtype: DType::BF16,
            kv_dtype: DType::BF16,
            enforce_eager: false,
            graph_batch_sizes: steps.collect(),
        }
    }
}
