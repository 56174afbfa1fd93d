//! The devices: what each makes of the options.

use std::time::Instant;

use pagedllm_checkpoint::Checkpoint;
use pagedllm_core::DType;
use pagedllm_cpu::{CpuBackend, CpuDType, CpuOptions};

use crate::open::{OpenError, Opened, Placement, Progress, open_on};
use crate::options::{ExecutorOptions, KvCacheDType, ModelDType};
use crate::sizing::Budget;

/// Most that the KV cache takes on a CPU unless more is asked for.
const CPU_KV_CACHE_BYTES: u64 = 4 << 30;
/// Share of the free memory that the KV cache takes on a CPU unless more is asked for.
const CPU_KV_CACHE_SHARE: u64 = 4;

pub(crate) fn open_cpu(
    checkpoint: &Checkpoint,
    options: &ExecutorOptions,
    progress: Progress<'_>,
) -> Result<Opened, OpenError> {
    let start = Instant::now();
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
    let placement = Placement {
        device: format!("cpu, {}, {} threads", backend.isa(), cpu_options.num_threads),
        kv_dtype,
        max_steps_in_flight: 1,
        budget: Budget::Share { of_free: CPU_KV_CACHE_SHARE, at_most: CPU_KV_CACHE_BYTES },
        time: start.elapsed(),
        monitor: None,
    };
    open_on(backend, placement, checkpoint, options, progress)
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn open_cuda(
    _checkpoint: &Checkpoint,
    _options: &ExecutorOptions,
    _progress: Progress<'_>,
) -> Result<Opened, OpenError> {
    unreachable!("without the feature cuda no GPU is available")
}

#[cfg(feature = "cuda")]
pub(crate) fn open_cuda(
    checkpoint: &Checkpoint,
    options: &ExecutorOptions,
    progress: Progress<'_>,
) -> Result<Opened, OpenError> {
    use std::sync::Arc;

    let start = Instant::now();
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
    let backend = pagedllm_cuda::CudaBackend::new(pagedllm_cuda::CudaOptions {
        dtype,
        kv_dtype,
        enforce_eager: options.enforce_eager,
        ..pagedllm_cuda::CudaOptions::default()
    })?;
    let (free_bytes, total_bytes) = backend.memory()?;
    let utilization = options.gpu_memory_utilization;
    let budget = Budget::Device { total_bytes, free_bytes, utilization };
    if let Some(message) = budget.warning() {
        tracing::warn!("{message}");
    }
    let monitor = match backend.monitor() {
        Ok(monitor) => {
            let read: crate::GpuMonitor = Arc::new(move || monitor.read());
            Some(read)
        }
        Err(reason) => {
            tracing::info!("no metrics of the GPU: {reason}");
            None
        }
    };
    let placement = Placement {
        device: format!("{}, {dtype}, KV cache {kv_dtype}", backend.describe()),
        kv_dtype,
        max_steps_in_flight: 2,
        budget,
        time: start.elapsed(),
        monitor,
    };
    open_on(backend, placement, checkpoint, options, progress)
}
