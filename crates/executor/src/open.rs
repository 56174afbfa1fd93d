//! Opening an executor: backend, weights, workspace, KV cache, in this order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pagedllm_backend::{Backend, DeviceError, WorkspaceSpec};
use pagedllm_checkpoint::Checkpoint;
use pagedllm_core::{DType, RankId};
use pagedllm_cuda::GpuStats;
use pagedllm_engine::{Executor, ExecutorShape};
use pagedllm_models::{LoadError, LoadOptions, WorkspaceLimits};

use crate::device::{open_cpu, open_cuda};
use crate::local::LocalExecutor;
use crate::options::{Device, ExecutorOptions};
use crate::sizing::{self, Budget, ContextTooLarge, Demand};

/// Most logit rows in one step.
const MAX_LOGIT_ROWS: usize = 1024;

/// Looks at a GPU.
pub type GpuMonitor = Arc<dyn Fn() -> GpuStats + Send + Sync>;

/// Told the progress of a load; returns whether to go on.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(LoadProgress) -> bool;

/// Progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Weight bytes that are on the device.
    pub done_bytes: u64,
    /// Weight bytes in all; 0 where they are made up and nobody has counted them.
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
    /// Bytes of the weights, as stored or as made up.
    pub weight_bytes: u64,
    /// Bytes of one KV block.
    pub block_bytes: u64,
    /// Parts of the opening and the time that each took, in order.
    pub times: Vec<(&'static str, Duration)>,
    /// Looks at the GPU, where the model runs on one that lets itself be looked at.
    pub monitor: Option<GpuMonitor>,
}

/// Opens an executor for a checkpoint. `progress` is told after each tensor, and stops the load
/// by returning false.
///
/// # Errors
/// See [`OpenError`].
pub fn open(
    checkpoint: &Checkpoint,
    options: &ExecutorOptions,
    progress: Progress<'_>,
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
        Device::Cuda => {
            pagedllm_cuda::check_available().map_err(|error| OpenError::Option {
                option: "device",
                message: format!("{}; use auto or cpu", reason(&error)),
            })?;
            open_cuda(checkpoint, options, progress)
        }
        Device::Auto => {
            if let Err(error) = pagedllm_cuda::check_available() {
                if cfg!(feature = "cuda") {
                    tracing::info!("{}; the model runs on the CPU", reason(&error));
                }
                return open_cpu(checkpoint, options, progress);
            }
            match open_cuda(checkpoint, options, progress) {
                Err(
                    OpenError::Device(DeviceError::Unsupported(reason))
                    | OpenError::Load(LoadError::Device(DeviceError::Unsupported(reason))),
                ) => {
                    tracing::warn!(reason, "the GPU can't run this model; it runs on the CPU");
                    open_cpu(checkpoint, options, progress)
                }
                opened => opened,
            }
        }
    }
}

/// What a device says against being used, without the words that the kind of error adds.
fn reason(error: &DeviceError) -> String {
    match error {
        DeviceError::Unsupported(reason) => reason.clone(),
        other => other.to_string(),
    }
}

/// What a backend brings to the common part of opening.
pub(crate) struct Placement {
    pub(crate) device: String,
    pub(crate) kv_dtype: DType,
    pub(crate) max_steps_in_flight: usize,
    pub(crate) budget: Budget,
    /// Time that opening the backend took.
    pub(crate) time: Duration,
    pub(crate) monitor: Option<GpuMonitor>,
}

/// Times of the parts of opening.
struct Watch {
    last: Instant,
    times: Vec<(&'static str, Duration)>,
}

impl Watch {
    fn lap(&mut self, part: &'static str) {
        let now = Instant::now();
        self.times.push((part, now - self.last));
        self.last = now;
    }
}

pub(crate) fn open_on<B: Backend>(
    mut backend: B,
    placement: Placement,
    checkpoint: &Checkpoint,
    options: &ExecutorOptions,
    progress: Progress<'_>,
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
    let mut watch = Watch { last: Instant::now(), times: vec![("device", placement.time)] };
    let total_bytes = checkpoint.total_bytes();
    let mut made_bytes = 0;
    let load = LoadOptions { rank: RankId::SINGLE, max_model_len: longest };
    let model = pagedllm_models::load(&mut backend, checkpoint, load, &mut |done_bytes| {
        made_bytes = done_bytes;
        progress(LoadProgress { done_bytes, total_bytes })
    })
    .map_err(weights_error)?;
    watch.lap("weights");

    let limits = WorkspaceLimits {
        max_num_batched_tokens: options.max_num_batched_tokens,
        max_num_seqs: options.max_num_seqs.min(options.max_num_batched_tokens),
        max_logit_rows: MAX_LOGIT_ROWS.min(options.max_num_batched_tokens),
        max_model_len: longest,
        block_size: options.block_size,
    };
    reserve_workspace(&mut backend, &pagedllm_models::workspace(config, 1, limits))?;
    watch.lap("workspace");

    let groups = pagedllm_models::kv_groups(config, 1, options.block_size, placement.kv_dtype)?;
    let demand = Demand {
        budget_bytes: options
            .kv_cache_memory_bytes
            .unwrap_or_else(|| placement.budget.kv_bytes(backend.free_bytes())),
        context_length: config.context_length(),
        max_model_len: options.max_model_len,
        max_num_seqs: limits.max_num_seqs,
        block_size: options.block_size,
    };
    let sizes = sizing::size(&groups, demand)?;
    let kv = backend.allocate_kv_cache(&groups, sizes.num_blocks).map_err(kv_error)?;
    watch.lap("KV cache");
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
        weight_bytes: if checkpoint.is_dummy() { made_bytes } else { total_bytes },
        block_bytes,
        times: watch.times,
        monitor: placement.monitor,
    })
}

fn weights_error(error: LoadError) -> OpenError {
    match error {
        LoadError::Device(DeviceError::OutOfMemory { what, needed_bytes, free_bytes }) => {
            OpenError::Option {
                option: "model",
                message: format!(
                    "the weights do not fit the device: {what} needs {needed_bytes} bytes and \
                     {free_bytes} are free"
                ),
            }
        }
        other => other.into(),
    }
}

fn reserve_workspace<B: Backend>(
    backend: &mut B,
    workspace: &WorkspaceSpec,
) -> Result<(), OpenError> {
    backend.reserve_workspace(workspace).map_err(|error| match error {
        DeviceError::OutOfMemory { needed_bytes, free_bytes, .. } => OpenError::Option {
            option: "max-num-batched-tokens",
            message: format!(
                "steps of {} tokens and {} sequences need {needed_bytes} bytes of activations and \
                 {free_bytes} are free; use fewer, or a lower max-num-seqs",
                workspace.max_num_batched_tokens, workspace.max_num_seqs
            ),
        },
        other => other.into(),
    })
}

fn kv_error(error: DeviceError) -> OpenError {
    match error {
        DeviceError::OutOfMemory { needed_bytes, free_bytes, .. } => OpenError::Option {
            option: "kv-cache-memory-bytes",
            message: format!(
                "the KV cache needs {needed_bytes} bytes and {free_bytes} are free; give it less, \
                 or leave it to gpu-memory-utilization"
            ),
        },
        other => other.into(),
    }
}
