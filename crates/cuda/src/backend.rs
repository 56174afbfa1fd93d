//! The backend: verbs to launches. Loading is in `load.rs`, launches of the verbs in `verbs.rs`.

use std::collections::HashMap;
use std::sync::Arc;

use pagedllm_backend::{
    Activation, AttentionSpec, Backend, DeviceError, DummyMatrix, Rope, WorkspaceSpec,
};
use pagedllm_core::{
    DType, KvGroup, LinearPart, SamplingBatch, Split, StepInput, StepOutput, WeightView,
};

use crate::device::{Device, DeviceBuffer, Event};
use crate::graph::{Capture, Graph};
use crate::kernel::{self, Kernels};
use crate::kv::KvCache;
use crate::launch::blas::Blas;
use crate::linear::{Linear, Norm, Vocab};
use crate::load::Attention;
use crate::nvml::Monitor;
use crate::options::CudaOptions;
use crate::plan::GroupShape;
use crate::sample::{Sampled, Sampler};
use crate::step::{Lists, Step, StepArea};
use crate::verbs::{Pending, Verbs};
use crate::weights::Loader;
use crate::workspace::{Arena, Place, Tensor};

/// Held back from the KV cache for what is allocated after the start, all of it bounded: recorded
/// steps (one for each batch size, recorded when it is first seen), code that the driver and
/// cuBLASLt load at first use, and lists of biases longer than usual.
const LATER_BYTES: u64 = 1 << 30;
/// On a small device, one part in so many of what is free instead.
const LATER_SHARE: u64 = 16;

/// One CUDA device.
///
/// A fault of the device is remembered and comes out of [`wait`](Backend::wait); until then verbs
/// go on issuing work that has no effect.
#[derive(Debug)]
pub struct CudaBackend {
    pub(crate) options: CudaOptions,
    pub(crate) loader: Loader,
    pub(crate) kernels: Kernels,
    pub(crate) verbs: Verbs,
    pub(crate) blas: Blas,
    /// What the layers of each KV group have in common.
    pub(crate) groups: Vec<GroupShape>,
    /// Tables of cosines and sines, shared by the layers that turn alike.
    pub(crate) ropes: Vec<(Rope, Arc<DeviceBuffer>)>,
    pub(crate) work: Option<Work>,
    graphs: HashMap<usize, (Graph, Place)>,
    /// Whether a step is being recorded: verbs issue the rows of the recorded shape instead of the
    /// real ones, and a product may wait for the norm behind it.
    pub(crate) is_recording: bool,
    /// The product that waits. It comes before anything else that the stream is given.
    pub(crate) pending: Option<Pending>,
    pub(crate) fault: Option<DeviceError>,
    pub(crate) device: Arc<Device>,
}

/// What `reserve_workspace` made.
#[derive(Debug)]
pub(crate) struct Work {
    pub arena: Arena,
    pub area: StepArea,
    pub lists: Lists,
    pub sampler: Sampler,
    pub partial_out: DeviceBuffer,
    pub partial_stats: DeviceBuffer,
    pub arrived: DeviceBuffer,
    /// Numbers of sequences that are recorded, ascending.
    pub buckets: Vec<usize>,
}

impl CudaBackend {
    /// Opens a device and loads its kernels.
    ///
    /// # Errors
    /// No driver, no such device, a device too old, a missing library, or an element type that the
    /// device does not compute in.
    pub fn new(options: CudaOptions) -> Result<Self, DeviceError> {
        if options.dtype == DType::Fp8E4M3 {
            return Err(DeviceError::Unsupported(format!("activations in {}", options.dtype)));
        }
        let device = Device::open(options.device_ordinal)?;
        let kernels = Kernels::load(&device)?;
        let verbs = Verbs::new(&kernels, options.dtype)?;
        Ok(Self {
            loader: Loader::new(&device)?,
            verbs,
            kernels,
            blas: Blas::new(&device)?,
            groups: Vec::new(),
            ropes: Vec::new(),
            work: None,
            graphs: HashMap::new(),
            is_recording: false,
            pending: None,
            fault: None,
            device,
            options,
        })
    }

    /// The device and the code that runs on it, in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let Self { options, device, .. } = self;
        let code = kernel::code_for(device.capability);
        format!("cuda {} ({}, kernels {code})", options.device_ordinal, device.name)
    }

    /// Free and total bytes of the device's memory.
    ///
    /// # Errors
    /// A device fault.
    pub fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.device.memory()
    }

    /// A look at the device that needs nothing of the backend.
    ///
    /// # Errors
    /// The management library is not there, or does not know the device; in words.
    pub fn monitor(&self) -> Result<Monitor, String> {
        Monitor::open(self.options.device_ordinal, &self.device.bus_id)
    }

    /// Milliseconds that the device takes for what `issue` issues.
    ///
    /// # Errors
    /// A device fault.
    pub fn time(&mut self, issue: impl FnOnce(&mut Self)) -> Result<f32, DeviceError> {
        let (start, end) = (Event::new(&self.device, true)?, Event::new(&self.device, true)?);
        start.record()?;
        issue(self);
        end.record()?;
        end.wait()?;
        match &self.fault {
            Some(fault) => Err(fault.clone()),
            None => end.since(&start),
        }
    }

    /// Remembers the first fault.
    pub(crate) fn note(&mut self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            self.fault.get_or_insert(error);
        }
    }

    pub(crate) fn work(&self) -> &Work {
        self.work.as_ref().expect("reserve_workspace comes before the first step")
    }

    pub(crate) fn work_mut(&mut self) -> &mut Work {
        self.work.as_mut().expect("reserve_workspace comes before the first step")
    }

    /// The recorded shape of a step: all chunks are single tokens and a bucket holds them.
    fn bucket(&self, input: &StepInput) -> Option<usize> {
        let seqs = input.batch.num_seqs();
        if self.options.enforce_eager || input.batch.num_tokens() != seqs {
            return None;
        }
        self.work().buckets.iter().copied().find(|&bucket| bucket >= seqs)
    }

    /// Runs `forward` once as it is, so that libraries load what they need, then records it.
    fn record(
        &mut self,
        bucket: usize,
        forward: &mut impl FnMut(&mut Self) -> Tensor,
    ) -> Result<Tensor, DeviceError> {
        let mut issue_all = |b: &mut Self| {
            let result = forward(b);
            b.issue_pending();
            result
        };
        drop(issue_all(self));
        let capture = Capture::begin(&self.device)?;
        let result = issue_all(self);
        let graph = capture.end()?;
        graph.replay()?;
        self.graphs.insert(bucket, (graph, result.place()));
        Ok(result)
    }
}

impl Backend for CudaBackend {
    type Tensor = Tensor;
    type Linear = Linear;
    type Norm = Norm;
    type Vocab = Vocab;
    type Attention = Attention;
    type KvCache = KvCache;
    type Step = Step;
    type Sampled = Sampled;

    fn load_linear(
        &mut self,
        parts: &[LinearPart<'_>],
        _split: Split,
    ) -> Result<Linear, DeviceError> {
        self.upload_linear(parts)
    }

    fn load_dummy_linear(
        &mut self,
        parts: &[DummyMatrix],
        _split: Split,
    ) -> Result<Linear, DeviceError> {
        self.make_linear(parts)
    }

    fn load_dummy_vocab(&mut self, table: &DummyMatrix) -> Result<Vocab, DeviceError> {
        self.make_vocab(table)
    }

    fn load_norm(&mut self, gain: &WeightView<'_>, eps: f32) -> Result<Norm, DeviceError> {
        self.upload_norm(gain, eps)
    }

    fn load_vocab(&mut self, table: &WeightView<'_>) -> Result<Vocab, DeviceError> {
        self.upload_vocab(table)
    }

    fn load_attention(
        &mut self,
        spec: &AttentionSpec,
        q_norm: Option<&WeightView<'_>>,
        k_norm: Option<&WeightView<'_>>,
        sinks: Option<&WeightView<'_>>,
    ) -> Result<Attention, DeviceError> {
        self.prepare_attention(spec, q_norm, k_norm, sinks)
    }

    fn reserve_workspace(&mut self, spec: &WorkspaceSpec) -> Result<(), DeviceError> {
        self.reserve(spec)
    }

    fn free_bytes(&self) -> u64 {
        let free = self.device.memory().map_or(0, |(free, _)| free);
        free - (free / LATER_SHARE).min(LATER_BYTES)
    }

    fn allocate_kv_cache(
        &mut self,
        groups: &[KvGroup],
        num_blocks: usize,
    ) -> Result<KvCache, DeviceError> {
        if let Some(group) = groups.iter().find(|g| g.layout.dtype != self.options.kv_dtype) {
            return Err(DeviceError::Unsupported(format!(
                "a KV cache of {} on a device opened for {}",
                group.layout.dtype, self.options.kv_dtype
            )));
        }
        KvCache::new(&self.device, groups, num_blocks)
    }

    fn begin_step(&mut self, kv: &mut KvCache, input: &StepInput) -> Step {
        let padded = self.bucket(input);
        let bound = self.device.bind();
        self.note(bound);
        let copied = self.copy_blocks(kv, &input.copies);
        self.note(copied);
        let counted = self.change_state(&input.state_ops);
        self.note(counted);
        match self.upload_step(input, padded) {
            Ok(step) => step,
            Err(error) => {
                self.fault.get_or_insert(error);
                Step::without_items(&input.batch)
            }
        }
    }

    fn run(&mut self, step: &Step, mut forward: impl FnMut(&mut Self) -> Tensor) -> Tensor {
        let Some(bucket) = step.padded.filter(|_| self.fault.is_none()) else {
            return forward(self);
        };
        if let Some((graph, place)) = self.graphs.get(&bucket) {
            let result = self.work().arena.take_at(*place);
            let replayed = graph.replay();
            self.note(replayed);
            return result;
        }
        self.is_recording = true;
        let recorded = self.record(bucket, &mut forward);
        self.is_recording = false;
        match recorded {
            Ok(result) => result,
            Err(error) => {
                self.fault.get_or_insert(error);
                forward(self)
            }
        }
    }

    fn sample(
        &mut self,
        logits: Option<Tensor>,
        _step: &Step,
        sampling: &SamplingBatch,
    ) -> Sampled {
        let bound = self.device.bind();
        self.note(bound);
        match self.start_sampling(logits.as_ref(), sampling) {
            Ok(sampled) => sampled,
            Err(error) => {
                self.fault.get_or_insert(error);
                self.work().sampler.nothing()
            }
        }
    }

    fn wait(&mut self, sampled: Sampled) -> Result<StepOutput, DeviceError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let output = self.work().sampler.wait(&sampled);
        if let Err(error) = &output {
            self.fault = Some(error.clone());
        }
        output
    }

    fn embed(&mut self, table: &Vocab, step: &Step) -> Tensor {
        self.issue_embed(table, step)
    }

    fn head(&mut self, hidden: &Tensor, table: &Vocab, step: &Step) -> Tensor {
        self.issue_head(hidden, table, step)
    }

    fn zeros(&mut self, like: &Tensor, _step: &Step) -> Tensor {
        self.issue_zeros(like)
    }

    fn linear(&mut self, x: &Tensor, w: &Linear, _step: &Step) -> Tensor {
        self.issue_linear(x, w)
    }

    fn gated(&mut self, gate_up: Tensor, activation: Activation, _step: &Step) -> Tensor {
        self.issue_gated(&gate_up, activation)
    }

    fn rms_norm(&mut self, x: &Tensor, norm: &Norm, _step: &Step) -> Tensor {
        self.issue_rms_norm(x, norm)
    }

    fn add_rms_norm(
        &mut self,
        x: Tensor,
        residual: &mut Tensor,
        norm: &Norm,
        _step: &Step,
    ) -> Tensor {
        self.issue_add_rms_norm(&x, residual, norm)
    }

    fn rope_and_store(
        &mut self,
        qkv: &mut Tensor,
        attention: &Attention,
        kv: &mut KvCache,
        _step: &Step,
    ) {
        self.issue_rope_and_store(qkv, attention, kv);
    }

    fn paged_attention(
        &mut self,
        qkv: &Tensor,
        attention: &Attention,
        kv: &KvCache,
        step: &Step,
    ) -> Tensor {
        self.issue_attention(qkv, attention, kv, step)
    }

    fn all_reduce(&mut self, partial: Tensor, _step: &Step) -> Tensor {
        partial
    }

    fn norm_linear(
        &mut self,
        partial: Tensor,
        residual: &mut Tensor,
        norm: &Norm,
        w: &Linear,
        step: &Step,
    ) -> Tensor {
        let x = self.all_reduce(partial, step);
        if let Some(out) = self.issue_normed_product(&x, residual, norm, w, None) {
            return out;
        }
        let x = self.issue_add_rms_norm(&x, residual, norm);
        self.issue_linear(&x, w)
    }

    fn gated_mlp(
        &mut self,
        partial: Tensor,
        residual: &mut Tensor,
        norm: &Norm,
        gate_up: &Linear,
        activation: Activation,
        down: &Linear,
        step: &Step,
    ) -> Tensor {
        let x = self.all_reduce(partial, step);
        if let Some(inner) =
            self.issue_normed_product(&x, residual, norm, gate_up, Some(activation))
        {
            return self.issue_linear(&inner, down);
        }
        let x = self.issue_add_rms_norm(&x, residual, norm);
        let inner = self.issue_gated_product(x, gate_up, activation);
        self.issue_linear(&inner, down)
    }

    fn attend(
        &mut self,
        mut qkv: Tensor,
        attention: &Attention,
        kv: &mut KvCache,
        step: &Step,
    ) -> Tensor {
        if let Some(out) = self.issue_attend(&qkv, attention, kv, step) {
            return out;
        }
        self.issue_rope_and_store(&mut qkv, attention, kv);
        self.issue_attention(&qkv, attention, kv, step)
    }

    fn select_logit_rows(&mut self, x: &Tensor, step: &Step) -> Tensor {
        self.issue_select(x, step)
    }
}
