//! Opening an executor: backend, weights, workspace, KV cache, in this order.

use std::time::{Duration, Instant};

use pagedllm_backend::{Backend, DeviceError};
use pagedllm_checkpoint::Checkpoint;
use pagedllm_core::{DType, RankId};
use pagedllm_cpu::{CpuBackend, CpuDType, CpuOptions};
use pagedllm_engine::{Executor, ExecutorShape};
use pagedllm_models::{LoadError, LoadOptions, WorkspaceLimits};

use crate::local::LocalExecutor;
use crate::options::{Device, ExecutorOptions, KvCacheDType, ModelDType};
use crate::sizing::{self, ContextTooLarge, Demand};

/// Most logit rows in one step.
const MAX_LOGIT_ROWS: usize = 1024;
/// Most that the KV cache takes on a CPU unless more is asked for.
const CPU_KV_CACHE_BYTES: u64 = 4 << 30;
/// Share of the free memory that the KV cache takes on a CPU unless more is asked for.
const CPU_KV_CACHE_SHARE: u64 = 4;

/// Progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Weight bytes that are on the device.
    pub done_bytes: u64,
    /// Weight bytes in all.
    pub total_bytes: u64,
}

/// Why an executor could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The model could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The context does not fit.
    #[error(transparent)]
    Context(#[from] ContextTooLarge),
    /// An option can't be met; `option` is its long name.
    #[error("{option}: {message}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is wrong and what would be right.
        message: String,
    },
}

/// An executor, and what it took.
pub struct Opened {
    /// Ready for steps.
    pub executor: Box<dyn Executor>,
    /// The device in words.
    pub device: String,
    /// Bytes of one KV block.
    pub block_bytes: u64,
    /// Time for the weights.
    pub weights_time: Duration,
    /// Time for workspace and KV cache.
    pub memory_time: Duration,
}

/// Opens an executor for a checkpoint. `progress` is told after each tensor, and stops the load
/// by returning false.
///
/// # Errors
/// See [`OpenError`].
pub fn open(
    checkpoint: &Checkpoint,
    options: &ExecutorOptions,
    progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<Opened, OpenError> {
    if options.tensor_parallel_size != 1 {
        return Err(OpenError::Option {
            option: "tensor-parallel-size",
            message: format!(
                "{} ranks: the model runs on one device here; use 1",
                options.tensor_parallel_size
            ),
        });
    }
    match options.device {
        Device::Cpu => open_cpu(checkpoint, options, progress),
        Device::Cuda => open_cuda(checkpoint, options, progress),
        Device::Auto if !pagedllm_cuda::available() => open_cpu(checkpoint, options, progress),
        Device::Auto => match open_cuda(checkpoint, options, progress) {
            Err(
                OpenError::Device(DeviceError::Unsupported(reason))
                | OpenError::Load(LoadError::Device(DeviceError::Unsupported(reason))),
            ) => {
                tracing::warn!(reason, "the GPU can't run this model; it runs on the CPU");
                open_cpu(checkpoint, options, progress)
            }
            opened => opened,
        },
    }
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(
    _checkpoint: &Checkpoint,
    _options: &ExecutorOptions,
    _progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<Opened, OpenError> {
    Err(OpenError::Option {
        option: "device",
        message: "this program was built without the feature cuda; use cpu".into(),
    })
}

#[cfg(feature = "cuda")]
fn open_cuda(
    checkpoint: &Checkpoint,
    options: &ExecutorOptions,
    progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<Opened, OpenError> {
    let dtype = match options.dtype {
        ModelDType::Auto => match checkpoint.config().dtype {
            DType::F16 => DType::F16,
            _ => DType::BF16,
        },
        ModelDType::Float16 => DType::F16,
        ModelDType::BFloat16 => DType::BF16,
        ModelDType::Float32 => DType::F32,
    };
    let kv_dtype = match options.kv_cache_dtype {
        KvCacheDType::Auto => dtype,
        KvCacheDType::Float16 => DType::F16,
        KvCacheDType::BFloat16 => DType::BF16,
        KvCacheDType::Float32 => DType::F32,
        KvCacheDType::Fp8 => DType::Fp8E4M3,
    };
    let cuda_options = pagedllm_cuda::CudaOptions {
        dtype,
        kv_dtype,
        enforce_eager: options.enforce_eager,
        ..pagedllm_cuda::CudaOptions::default()
    };
    let backend = pagedllm_cuda::CudaBackend::new(cuda_options)?;
    let before = backend.free_bytes();
    let reserve = (before as f64 * f64::from(1.0 - options.gpu_memory_utilization)) as u64;
    let placement =
        Placement { device: format!("cuda, {dtype}"), kv_dtype, max_steps_in_flight: 2 };
    let kv_bytes = move |free: u64| free.saturating_sub(reserve);
    open_on(backend, placement, checkpoint, options, kv_bytes, progress)
}

fn open_cpu(
    checkpoint: &Checkpoint,
    options: &ExecutorOptions,
    progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<Opened, OpenError> {
    let dtype = match options.dtype {
        ModelDType::Float32 => CpuDType::Float32,
        ModelDType::Auto | ModelDType::BFloat16 => CpuDType::Fast,
        ModelDType::Float16 => {
            tracing::warn!("a CPU computes in bfloat16 or 8 bits with f32 sums, not in float16");
            CpuDType::Fast
        }
    };
    let kv_dtype = match (options.kv_cache_dtype, dtype) {
        (KvCacheDType::Auto, CpuDType::Float32) | (KvCacheDType::Float32, _) => DType::F32,
        (KvCacheDType::Auto, CpuDType::Fast) | (KvCacheDType::BFloat16, _) => DType::BF16,
        (KvCacheDType::Float16, _) => DType::F16,
        (KvCacheDType::Fp8, _) => {
            return Err(OpenError::Option {
                option: "kv-cache-dtype",
                message: "fp8 needs a GPU; use auto, bfloat16, float16 or float32".into(),
            });
        }
    };
    let mut cpu_options = CpuOptions { dtype, ..CpuOptions::default() };
    if let Some(threads) = options.threads {
        cpu_options.num_threads = threads;
    }
    let backend = CpuBackend::new(cpu_options)?;
    let device = format!("cpu, {}, {} threads", backend.isa(), cpu_options.num_threads);
    let kv_bytes = |free: u64| (free / CPU_KV_CACHE_SHARE).min(CPU_KV_CACHE_BYTES);
    open_on(
        backend,
        Placement { device, kv_dtype, max_steps_in_flight: 1 },
        checkpoint,
        options,
        kv_bytes,
        progress,
    )
}

/// What a backend brings to the common part of opening.
struct Placement {
    device: String,
    kv_dtype: DType,
    max_steps_in_flight: usize,
}

fn open_on<B: Backend>(
    mut backend: B,
    placement: Placement,
    checkpoint: &Checkpoint,
    options: &ExecutorOptions,
    kv_bytes: impl Fn(u64) -> u64,
    progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<Opened, OpenError> {
    let config = checkpoint.config();
    let longest = options.max_model_len.unwrap_or_else(|| config.context_length());
    if longest > config.context_length() {
        return Err(OpenError::Option {
            option: "max-model-len",
            message: format!(
                "{longest} is more than the model's {} positions",
                config.context_length()
            ),
        });
    }
    let start = Instant::now();
    let total_bytes = checkpoint.total_bytes();
    let load = LoadOptions { rank: RankId::SINGLE, max_model_len: longest };
    let model = pagedllm_models::load(&mut backend, checkpoint, load, &mut |done_bytes| {
        progress(LoadProgress { done_bytes, total_bytes })
    })?;
    let weights_time = start.elapsed();

    let start = Instant::now();
    let limits = WorkspaceLimits {
        max_num_batched_tokens: options.max_num_batched_tokens,
        max_num_seqs: options.max_num_seqs.min(options.max_num_batched_tokens),
        max_logit_rows: MAX_LOGIT_ROWS.min(options.max_num_batched_tokens),
        max_model_len: longest,
        block_size: options.block_size,
    };
    let workspace = pagedllm_models::workspace(config, 1, limits);
    backend.reserve_workspace(&workspace).map_err(|error| match error {
        DeviceError::OutOfMemory { needed_bytes, free_bytes, .. } => OpenError::Option {
            option: "max-num-batched-tokens",
            message: format!(
                "steps of {} tokens need {needed_bytes} bytes of activations and {free_bytes} are \
                 free; use fewer",
                limits.max_num_batched_tokens
            ),
        },
        other => other.into(),
    })?;
    let groups = pagedllm_models::kv_groups(config, 1, options.block_size, placement.kv_dtype)?;
    let demand = Demand {
        budget_bytes: options
            .kv_cache_memory_bytes
            .unwrap_or_else(|| kv_bytes(backend.free_bytes())),
        context_length: config.context_length(),
        max_model_len: options.max_model_len,
        max_num_seqs: limits.max_num_seqs,
        block_size: options.block_size,
    };
    let sizes = sizing::size(&groups, demand)?;
    let kv = backend.allocate_kv_cache(&groups, sizes.num_blocks)?;
    let block_bytes = sizing::block_bytes(&groups);
    let shape = ExecutorShape {
        groups,
        block_size: options.block_size,
        num_blocks: sizes.num_blocks,
        vocab_size: config.vocab_size,
        max_model_len: sizes.max_model_len,
        max_num_batched_tokens: limits.max_num_batched_tokens,
        max_num_seqs: limits.max_num_seqs,
        max_logit_rows: limits.max_logit_rows,
        max_steps_in_flight: placement.max_steps_in_flight,
    };
    Ok(Opened {
        executor: Box::new(LocalExecutor::new(backend, model, kv, shape)),
        device: placement.device,
        block_bytes,
        weights_time,
        memory_time: start.elapsed(),
    })
}
