//! The verbs, mapped to loops. Every verb runs at once; nothing is left to wait for.

use std::sync::Arc;

use pagedllm_backend::sampler::SamplingState;
use pagedllm_backend::{
    Activation, AttentionSpec, Backend, DeviceError, WorkspaceSpec, dequantize,
};
use pagedllm_core::{
    GroupTables, KvGroup, LinearPart, SamplingBatch, Split, StepInput, StepOutput, TokenId,
    TokenSource, WeightView,
};

use crate::attention::{self, AttentionLayer, Problem, QueryBlocks, attend};
use crate::kv_cache::KvCache;
use crate::linear::{CpuDType, Inputs, Linear, rows_per_task};
use crate::rope::{Angles, turn_row};
use crate::sampler;
use crate::simd::{Isa, Kernels};
use crate::threads::{Chunks, Dealt, Parts, Shares, ThreadPool};
use crate::workspace::{Arena, ScratchSizes, Tensor, available_bytes};

/// Steps that may be held at the same time: two in flight, and the one being dropped.
const MAX_STEPS: usize = 3;
/// Activations of the largest size that a layer holds at the same time.
const MAX_LARGE_TENSORS: usize = 4;
/// Activations of the residual's width that a layer holds at the same time.
const MAX_HIDDEN_TENSORS: usize = 5;

/// How the CPU backend runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the calling one included.
    pub num_threads: usize,
    /// How exact products are.
    pub dtype: CpuDType,
    /// Instruction set; `None` takes the best that the processor has.
    pub isa: Option<Isa>,
}

impl Default for CpuOptions {
    /// One thread for each physical core, fast products, the best instruction set.
    fn default() -> Self {
        Self { num_threads: physical_cores(), dtype: CpuDType::Fast, isa: None }
    }
}

/// Cores that this process may run on, siblings of one core counted once.
#[must_use]
pub fn physical_cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    let mut cores = std::collections::HashSet::new();
    for cpu in 0.. {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        match std::fs::read_to_string(path) {
            Ok(siblings) => cores.insert(siblings),
            Err(_) => break,
        };
    }
    if cores.is_empty() { logical } else { logical.min(cores.len()) }
}

/// The CPU as a device.
pub struct CpuBackend {
    kernels: Kernels,
    dtype: CpuDType,
    pool: ThreadPool,
    arena: Arc<Arena>,
    inputs: Inputs,
    angles: Angles,
    query_blocks: QueryBlocks,
    scratch_sizes: ScratchSizes,
    steps: Vec<Arc<StepData>>,
    num_steps: u64,
    /// What the previous step drew, for `TokenSource::SampledBy`.
    drawn: Vec<TokenId>,
    sampling: SamplingState,
}

/// `RMSNorm` gain and epsilon.
pub struct CpuNorm {
    gain: Vec<f32>,
    eps: f32,
}

/// The batch of a step with its tokens known.
#[derive(Default)]
struct StepData {
    number: u64,
    tokens: Vec<TokenId>,
    positions: Vec<u32>,
    query_starts: Vec<u32>,
    logit_rows: Vec<u32>,
    groups: Vec<GroupTables>,
}

/// A handle on the batch of a step.
#[derive(Clone)]
pub struct CpuStep(Arc<StepData>);

fn refill<T: Copy>(to: &mut Vec<T>, from: &[T]) {
    to.clear();
    to.extend_from_slice(from);
}

impl CpuBackend {
    /// A backend with its own threads.
    ///
    /// # Errors
    /// The processor lacks the instruction set asked for, or the system refuses a thread.
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        let kernels = Kernels::new(isa).ok_or_else(|| {
            DeviceError::Unsupported(format!("this processor does not have {isa}"))
        })?;
        let pool = ThreadPool::new(options.num_threads)
            .map_err(|error| DeviceError::Fault(format!("no thread: {error}")))?;
        Ok(Self {
            kernels,
            dtype: options.dtype,
            pool,
            arena: Arc::default(),
            inputs: Inputs::default(),
            angles: Angles::default(),
            query_blocks: QueryBlocks::default(),
            scratch_sizes: ScratchSizes::default(),
            steps: (0..MAX_STEPS).map(|_| Arc::default()).collect(),
            num_steps: 0,
            drawn: Vec::new(),
            sampling: SamplingState::default(),
        })
    }

    /// The instruction set in use.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.kernels.isa()
    }

    /// An activation with unspecified contents.
    pub(crate) fn tensor(&self, rows: usize, cols: usize) -> Tensor {
        self.arena.take(rows, cols)
    }

    /// `w` times the rows of `x`, which `produce` first fills in or changes, in parallel and
    /// together with the part of `extra` that goes with them.
    fn produce_and_multiply<P: Parts>(
        &mut self,
        (x, extra): (&mut Tensor, P),
        w: &Linear,
        produce: impl Fn(&mut [f32], P::Part) + Sync,
    ) -> Tensor {
        assert_eq!(x.cols, w.cols(), "the matrix has other inputs");
        self.inputs.prepare(&mut self.pool, &self.kernels, (x, extra), w, produce);
        let mut out = self.arena.take(x.rows, w.rows());
        self.inputs.multiply(&mut self.pool, &self.kernels, x, w, &mut out);
        out
    }

    fn rows_per_task(&self, rows: usize) -> usize {
        rows_per_task(rows, self.pool.num_threads())
    }
}

impl Backend for CpuBackend {
    type Tensor = Tensor;
    type Linear = Linear;
    type Norm = CpuNorm;
    type Vocab = Linear;
    type Attention = AttentionLayer;
    type KvCache = KvCache;
    type Step = CpuStep;
    type Sampled = StepOutput;

    fn load_linear(
        &mut self,
        parts: &[LinearPart<'_>],
        _split: Split,
    ) -> Result<Linear, DeviceError> {
        let linear = Linear::load(parts, self.dtype, &mut self.pool)?;
        self.scratch_sizes = self.scratch_sizes.max(linear.scratch_sizes());
        Ok(linear)
    }

    fn load_norm(&mut self, gain: &WeightView<'_>, eps: f32) -> Result<CpuNorm, DeviceError> {
        Ok(CpuNorm { gain: dequantize::matrix(gain), eps })
    }

    fn load_vocab(&mut self, table: &WeightView<'_>) -> Result<Linear, DeviceError> {
        let part = LinearPart { weight: table.clone(), bias: None };
        self.load_linear(&[part], Split::Whole)
    }

    fn load_attention(
        &mut self,
        spec: &AttentionSpec,
        q_norm: Option<&WeightView<'_>>,
        k_norm: Option<&WeightView<'_>>,
        sinks: Option<&WeightView<'_>>,
    ) -> Result<AttentionLayer, DeviceError> {
        if spec.num_kv_heads == 0 || !spec.num_heads.is_multiple_of(spec.num_kv_heads) {
            let message = format!("{} heads over {}", spec.num_heads, spec.num_kv_heads);
            return Err(DeviceError::Unsupported(message));
        }
        self.scratch_sizes = self.scratch_sizes.max(attention::scratch_sizes(spec));
        Ok(AttentionLayer {
            spec: spec.clone(),
            rope: spec.rope.as_ref().map(|rope| self.angles.register(rope)),
            q_norm: q_norm.map(dequantize::matrix),
            k_norm: k_norm.map(dequantize::matrix),
            sinks: sinks.map(dequantize::matrix),
        })
    }

    fn reserve_workspace(&mut self, spec: &WorkspaceSpec) -> Result<(), DeviceError> {
        let tokens = spec.max_num_batched_tokens;
        let widest = spec.max_cols.max(spec.hidden_size);
        self.arena.reserve(MAX_HIDDEN_TENSORS, tokens * spec.hidden_size)?;
        self.arena.reserve(MAX_LARGE_TENSORS, tokens * widest)?;
        self.arena.reserve(2, spec.max_logit_rows * spec.vocab_size)?;
        self.inputs.reserve(tokens.max(spec.max_logit_rows), widest)?;
        let sizes = self.scratch_sizes;
        self.pool.reserve_scratch(|scratch| scratch.reserve(&sizes));
        self.angles.reserve(tokens);
        self.query_blocks.reserve(tokens);
        self.drawn.reserve(spec.max_logit_rows);
        let max_blocks = spec.max_model_len.div_ceil(spec.block_size.max(1));
        for step in &mut self.steps {
            let Some(step) = Arc::get_mut(step) else { continue };
            step.tokens.reserve(tokens);
            step.positions.reserve(tokens);
            step.query_starts.reserve(spec.max_num_seqs + 1);
            step.logit_rows.reserve(spec.max_logit_rows);
            step.groups.resize_with(1, GroupTables::default);
            for group in &mut step.groups {
                group.slot_mapping.reserve(tokens);
                group.block_tables.reserve(spec.max_num_seqs * max_blocks);
            }
        }
        Ok(())
    }

    fn free_bytes(&self) -> u64 {
        available_bytes()
    }

    fn allocate_kv_cache(
        &mut self,
        groups: &[KvGroup],
        num_blocks: usize,
    ) -> Result<KvCache, DeviceError> {
        KvCache::new(groups, num_blocks)
    }

    fn begin_step(&mut self, kv: &mut KvCache, input: &StepInput) -> CpuStep {
        kv.copy_blocks(&input.copies);
        self.sampling.apply(&input.state_ops);
        self.num_steps += 1;
        let free = self.steps.iter().position(|step| Arc::strong_count(step) == 1);
        let index = free.unwrap_or_else(|| {
            // More steps are held than the contract allows; it costs an allocation.
            self.steps.push(Arc::default());
            self.steps.len() - 1
        });
        let step = Arc::get_mut(&mut self.steps[index]).expect("nobody else holds it");
        let batch = &input.batch;
        step.number = self.num_steps;
        step.tokens.clear();
        step.tokens.extend(batch.token_ids.iter().map(|token| match *token {
            TokenSource::Known(token) => token,
            TokenSource::SampledBy { row } => self.drawn[row as usize],
        }));
        refill(&mut step.positions, &batch.positions);
        refill(&mut step.query_starts, &batch.query_starts);
        refill(&mut step.logit_rows, &batch.logit_rows);
        step.groups.resize_with(batch.groups.len(), GroupTables::default);
        for (to, from) in step.groups.iter_mut().zip(&batch.groups) {
            refill(&mut to.slot_mapping, &from.slot_mapping);
            refill(&mut to.block_tables, &from.block_tables);
            to.max_blocks = from.max_blocks;
        }
        CpuStep(Arc::clone(&self.steps[index]))
    }

    fn sample(
        &mut self,
        logits: Option<Tensor>,
        _step: &CpuStep,
        batch: &SamplingBatch,
    ) -> StepOutput {
        let rows = match logits {
            Some(logits) => {
                let logits = (&*logits, logits.cols);
                sampler::sample(&mut self.pool, &self.kernels, logits, batch, &mut self.sampling)
            }
            None => Vec::new(),
        };
        self.drawn.clear();
        self.drawn.extend(rows.iter().map(|row| row.tokens.last().copied().unwrap_or(0)));
        StepOutput { rows }
    }

    fn wait(&mut self, sampled: StepOutput) -> Result<StepOutput, DeviceError> {
        Ok(sampled)
    }

    fn embed(&mut self, table: &Linear, step: &CpuStep) -> Tensor {
        let cols = table.cols();
        let mut out = self.arena.take(step.0.tokens.len(), cols);
        self.pool.for_parts(Chunks::new(&mut out, cols), |row, out, _| {
            table.row(step.0.tokens[row] as usize, out);
        });
        out
    }

    fn head(&mut self, hidden: &Tensor, table: &Linear, step: &CpuStep) -> Tensor {
        self.linear(hidden, table, step)
    }

    fn zeros(&mut self, like: &Tensor, _step: &CpuStep) -> Tensor {
        let mut out = self.arena.take(like.rows, like.cols);
        out.fill(0.0);
        out
    }

    fn linear(&mut self, x: &Tensor, w: &Linear, _step: &CpuStep) -> Tensor {
        // Preparing may change rows, so it asks for a mutable copy; here nothing is produced.
        let mut copy = self.arena.take(x.rows, x.cols);
        let run = self.rows_per_task(x.rows) * x.cols;
        self.produce_and_multiply((&mut copy, Shares::new(x, run)), w, |to, x| {
            to.copy_from_slice(x);
        })
    }

    fn gated(&mut self, gate_up: Tensor, activation: Activation, _step: &CpuStep) -> Tensor {
        let cols = gate_up.cols / 2;
        let kernels = self.kernels;
        let mut out = self.arena.take(gate_up.rows, cols);
        let run = self.rows_per_task(out.rows);
        self.pool.for_parts(Chunks::new(&mut out, run * cols), |index, out, _| {
            for (row, out) in out.chunks_exact_mut(cols).enumerate() {
                let (gate, up) = gate_up.row(index * run + row).split_at(cols);
                kernels.gate(activation, gate, up, out);
            }
        });
        out
    }

    fn rms_norm(&mut self, x: &Tensor, norm: &CpuNorm, _step: &CpuStep) -> Tensor {
        let (cols, kernels) = (x.cols, self.kernels);
        let mut out = self.arena.take(x.rows, cols);
        let run = self.rows_per_task(x.rows);
        self.pool.for_parts(Chunks::new(&mut out, run * cols), |index, out, _| {
            for (row, out) in out.chunks_exact_mut(cols).enumerate() {
                kernels.normalize(x.row(index * run + row), &norm.gain, norm.eps, out);
            }
        });
        out
    }

    fn add_rms_norm(
        &mut self,
        mut x: Tensor,
        residual: &mut Tensor,
        norm: &CpuNorm,
        _step: &CpuStep,
    ) -> Tensor {
        assert_eq!((x.rows, x.cols), (residual.rows, residual.cols), "the residual's shape");
        let (cols, kernels) = (x.cols, self.kernels);
        let run = self.rows_per_task(x.rows) * cols;
        let parts = (Chunks::new(&mut x, run), Chunks::new(residual, run));
        self.pool.for_parts(parts, |_, (x, residual), _| {
            add_and_normalize(&kernels, x, residual, norm);
        });
        x
    }

    fn rope_and_store(
        &mut self,
        qkv: &mut Tensor,
        attention: &AttentionLayer,
        kv: &mut KvCache,
        step: &CpuStep,
    ) {
        let spec = &attention.spec;
        let (step, cols, kernels) = (&*step.0, qkv.cols, self.kernels);
        assert_eq!(cols, spec.qkv_cols(), "packed q, k and v");
        let (angles, angles_len) = match attention.rope {
            Some(index) => {
                let angles = self.angles.of_step(index, step.number, &step.positions);
                (angles, angles.len() / step.positions.len())
            }
            None => (&[][..], 0),
        };
        let norms = [attention.q_norm.as_deref(), attention.k_norm.as_deref()];
        let run = rows_per_task(qkv.rows, self.pool.num_threads());
        self.pool.for_parts(Chunks::new(qkv, run * cols), |index, rows, scratch| {
            scratch.tile.grow(spec.head_dim);
            for (row, qkv) in rows.chunks_exact_mut(cols).enumerate() {
                let angles = &angles[(index * run + row) * angles_len..][..angles_len];
                turn_row(&kernels, spec, norms, angles, qkv, &mut scratch.tile);
            }
        });
        let group = &mut kv.groups[spec.group];
        let shape = group.shape;
        let slots = &step.groups[spec.group].slot_mapping;
        let keys_at = spec.num_heads * spec.head_dim;
        let width = spec.num_kv_heads * spec.head_dim;
        let parts = if qkv.rows < 8 { 1 } else { 4 * self.pool.num_threads() };
        let blocks = Dealt::new(&mut group.layers[spec.layer_in_group], shape.block_bytes(), parts);
        self.pool.for_parts(blocks, |_, mut hand, _| {
            for (qkv, &slot) in qkv.chunks_exact(cols).zip(slots) {
                let (block, offset) =
                    (slot as usize / shape.block_size, slot as usize % shape.block_size);
                if let Some(block) = hand.run(block) {
                    let (keys, values) = qkv[keys_at..].split_at(width);
                    shape.store(block, offset, keys, values);
                }
            }
        });
    }

    fn paged_attention(
        &mut self,
        qkv: &Tensor,
        attention: &AttentionLayer,
        kv: &KvCache,
        step: &CpuStep,
    ) -> Tensor {
        let spec = &attention.spec;
        let mut out = self.arena.take(qkv.rows, spec.num_heads * spec.head_dim);
        let group = &kv.groups[spec.group];
        let problem = Problem {
            layer: attention,
            shape: group.shape,
            cells: &group.layers[spec.layer_in_group],
            qkv,
            positions: &step.0.positions,
            query_starts: &step.0.query_starts,
            tables: &step.0.groups[spec.group],
        };
        attend(&mut self.pool, &self.kernels, &problem, &mut self.query_blocks, &mut out);
        out
    }

    fn all_reduce(&mut self, partial: Tensor, _step: &CpuStep) -> Tensor {
        partial
    }

    fn select_logit_rows(&mut self, x: &Tensor, step: &CpuStep) -> Tensor {
        let rows = &step.0.logit_rows;
        let mut out = self.arena.take(rows.len(), x.cols);
        for (out, &row) in out.chunks_exact_mut(x.cols).zip(rows) {
            out.copy_from_slice(x.row(row as usize));
        }
        out
    }

    fn norm_linear(
        &mut self,
        mut partial: Tensor,
        residual: &mut Tensor,
        norm: &CpuNorm,
        w: &Linear,
        _step: &CpuStep,
    ) -> Tensor {
        assert_eq!(partial.len(), residual.len(), "the residual's shape");
        let (cols, kernels) = (partial.cols, self.kernels);
        let run = self.rows_per_task(partial.rows) * cols;
        // One pass adds, norms and rounds each row while it is in the first-level cache.
        let rows = (&mut partial, Chunks::new(residual, run));
        self.produce_and_multiply(rows, w, |x, residual| {
            add_and_normalize(&kernels, x, residual, norm);
        })
    }

    fn gated_linear(
        &mut self,
        gate_up: Tensor,
        activation: Activation,
        w: &Linear,
        _step: &CpuStep,
    ) -> Tensor {
        let cols = gate_up.cols / 2;
        let kernels = self.kernels;
        let mut x = self.arena.take(gate_up.rows, cols);
        let run = self.rows_per_task(gate_up.rows);
        let gate_up = Shares::new(&gate_up, run * 2 * cols);
        self.produce_and_multiply((&mut x, gate_up), w, |x, gate_up| {
            for (x, gate_up) in x.chunks_exact_mut(cols).zip(gate_up.chunks_exact(2 * cols)) {
                let (gate, up) = gate_up.split_at(cols);
                kernels.gate(activation, gate, up, x);
            }
        })
    }
}

/// Rows of `x` are added to those of `residual`, and become the normalized sums.
fn add_and_normalize(kernels: &Kernels, x: &mut [f32], residual: &mut [f32], norm: &CpuNorm) {
    let cols = norm.gain.len();
    for (x, residual) in x.chunks_exact_mut(cols).zip(residual.chunks_exact_mut(cols)) {
        kernels.add(x, residual);
        kernels.normalize(residual, &norm.gain, norm.eps, x);
    }
}
