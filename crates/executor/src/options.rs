//! What is chosen when an executor is opened.

/// Where a model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A GPU where there is one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA GPU.
    Cuda,
}

/// Precision of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelDType {
    /// The fastest that keeps the model's range: bfloat16 models stay bfloat16.
    Auto,
    /// IEEE half.
    Float16,
    /// bfloat16.
    BFloat16,
    /// 32-bit float, weights dequantized exactly.
    Float32,
}

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvCacheDType {
    /// That of the activations.
    Auto,
    /// IEEE half.
    Float16,
    /// bfloat16.
    BFloat16,
    /// 32-bit float.
    Float32,
    /// 8-bit float.
    Fp8,
}

/// Settings of an executor.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutorOptions {
    /// Where the model runs.
    pub device: Device,
    /// Precision of activations.
    pub dtype: ModelDType,
    /// Element type of the KV cache.
    pub kv_cache_dtype: KvCacheDType,
    /// Longest sequence; `None` takes the model's, or what fits.
    pub max_model_len: Option<usize>,
    /// Most sequences in a step.
    pub max_num_seqs: usize,
    /// Most tokens in a step.
    pub max_num_batched_tokens: usize,
    /// Token slots in a KV block.
    pub block_size: usize,
    /// Share of the device's memory that may be used.
    pub gpu_memory_utilization: f32,
    /// Bytes of the KV cache; `None` sizes it from free memory.
    pub kv_cache_memory_bytes: Option<u64>,
    /// No CUDA graphs.
    pub enforce_eager: bool,
    /// CPU threads that compute; `None` takes the physical cores.
    pub threads: Option<usize>,
    /// Ranks that share the model.
    pub tensor_parallel_size: usize,
}
