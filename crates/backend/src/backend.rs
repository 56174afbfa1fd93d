//! The verbs. Letters in shapes: `T` tokens in the step, `S` chunks, `R` logit rows, `V`
//! vocabulary, `H`, `K`, `D` heads, key/value heads and head width of this rank.

use pagedllm_core::{KvGroup, LinearPart, SamplingBatch, Split, StepInput, StepOutput, WeightView};

use crate::attention::{Activation, AttentionSpec};
use crate::dummy::DummyMatrix;

/// A device failed, or has not enough memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// An allocation at load did not fit.
    #[error("out of device memory: {needed_bytes} bytes needed for {what}, {free_bytes} free")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        needed_bytes: u64,
        /// Bytes that were free.
        free_bytes: u64,
    },
    /// The device can't do what the model asks.
    #[error("not supported on this device: {0}")]
    Unsupported(String),
    /// The device is gone; nothing further can run.
    #[error("device fault: {0}")]
    Fault(String),
}

/// Sizes for which activations and step inputs are reserved, once, after the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceSpec {
    /// Most tokens in a step.
    pub max_num_batched_tokens: usize,
    /// Most sequences in a step; also the rows of penalty state.
    pub max_num_seqs: usize,
    /// Most logit rows in a step.
    pub max_logit_rows: usize,
    /// Longest sequence.
    pub max_model_len: usize,
    /// Token slots in a KV block.
    pub block_size: usize,
    /// `V`.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Widest activation beside the logits: `qkv` or `gate_up`, of this rank.
    pub max_cols: usize,
}

/// One rank's device, driven by one thread in program order.
///
/// Activations are `[rows, cols]`. Verbs only *issue* work, so a backend may record them (CUDA
/// graphs) instead of running them at once. That holds because verbs never fail and never read
/// results back: shapes are asserted, memory was reserved at load, and a device fault is sticky
/// and comes out of [`wait`](Self::wait).
pub trait Backend: Sized + Send + 'static {
    /// Activation in the step workspace; dropping it returns its space.
    type Tensor: Send;
    /// Matrix, packed at load for this device, with its bias.
    type Linear: Send;
    /// `RMSNorm` gain and epsilon.
    type Norm: Send;
    /// The vocabulary matrix `[V, hidden]`: embedding, head, or both when tied.
    type Vocab: Send;
    /// One attention layer: its spec, tables and small weights.
    type Attention: Send;
    /// All KV blocks.
    type KvCache: Send;
    /// The batch on the device with its attention plan; a cheap handle on fixed addresses.
    type Step: Send;
    /// Tokens being drawn; trade it for values with [`wait`](Self::wait).
    type Sampled: Send;

    // ---- Load. The only allocations, and the only calls that may run out of memory.

    /// Packs `parts` one below the other as one matrix, keeping this rank's share of each.
    ///
    /// # Errors
    /// Out of memory, or a format that the device can't multiply.
    fn load_linear(
        &mut self,
        parts: &[LinearPart<'_>],
        split: Split,
    ) -> Result<Self::Linear, DeviceError>;
    /// As [`load_linear`](Self::load_linear), of weights that no file has. Override it where the
    /// device can make them itself; the values must be the same.
    ///
    /// # Errors
    /// Out of memory.
    fn load_dummy_linear(
        &mut self,
        parts: &[DummyMatrix],
        split: Split,
    ) -> Result<Self::Linear, DeviceError> {
        let parts: Vec<LinearPart<'_>> = parts.iter().map(DummyMatrix::part).collect();
        self.load_linear(&parts, split)
    }
    /// As [`load_vocab`](Self::load_vocab), of weights that no file has.
    ///
    /// # Errors
    /// Out of memory.
    fn load_dummy_vocab(&mut self, table: &DummyMatrix) -> Result<Self::Vocab, DeviceError> {
        self.load_vocab(&table.weight())
    }
    /// Loads an `RMSNorm` gain.
    ///
    /// # Errors
    /// Out of memory.
    fn load_norm(&mut self, gain: &WeightView<'_>, eps: f32) -> Result<Self::Norm, DeviceError>;
    /// Loads a vocabulary matrix, split over ranks by rows. It serves `embed` and `head` alike,
    /// so tied embeddings are stored once.
    ///
    /// # Errors
    /// Out of memory, or a format that the device can't read.
    fn load_vocab(&mut self, table: &WeightView<'_>) -> Result<Self::Vocab, DeviceError>;
    /// Prepares one attention layer. `q_norm` and `k_norm` are `[D]` gains applied to each head
    /// before the rotation; `sinks` are `[H]` logits that take part in the softmax and add
    /// nothing.
    ///
    /// # Errors
    /// Out of memory, or a shape that the device's kernels lack.
    fn load_attention(
        &mut self,
        spec: &AttentionSpec,
        q_norm: Option<&WeightView<'_>>,
        k_norm: Option<&WeightView<'_>>,
        sinks: Option<&WeightView<'_>>,
    ) -> Result<Self::Attention, DeviceError>;
    /// Reserves activations, step inputs and sampling state. Called once, after the weights.
    ///
    /// # Errors
    /// Out of memory.
    fn reserve_workspace(&mut self, spec: &WorkspaceSpec) -> Result<(), DeviceError>;
    /// Bytes that a KV cache may still take.
    fn free_bytes(&self) -> u64;
    /// Reserves `num_blocks` KV blocks for each group. Called once, last.
    ///
    /// # Errors
    /// Out of memory.
    fn allocate_kv_cache(
        &mut self,
        groups: &[KvGroup],
        num_blocks: usize,
    ) -> Result<Self::KvCache, DeviceError>;

    // ---- Step boundary. The only places where host and device exchange data.

    /// Runs the block copies and the state changes, uploads the batch, plans attention. At most
    /// two steps are begun and not waited for.
    fn begin_step(&mut self, kv: &mut Self::KvCache, input: &StepInput) -> Self::Step;
    /// Runs `forward`, or replays the graph recorded from it for a step of the same shape.
    /// `forward` must depend on nothing but the step, and have no effect but its result and KV.
    fn run(
        &mut self,
        step: &Self::Step,
        mut forward: impl FnMut(&mut Self) -> Self::Tensor,
    ) -> Self::Tensor {
        let _ = step;
        forward(self)
    }
    /// Starts sampling: one result for each row of `sampling`. `logits` is `[R, V]`, or `None`
    /// where the step has no logit rows.
    fn sample(
        &mut self,
        logits: Option<Self::Tensor>,
        step: &Self::Step,
        sampling: &SamplingBatch,
    ) -> Self::Sampled;
    /// Blocks until the step and its sampling are done. Legal after the next `begin_step`.
    ///
    /// # Errors
    /// The device is gone.
    fn wait(&mut self, sampled: Self::Sampled) -> Result<StepOutput, DeviceError>;

    // ---- Verbs.

    /// Token embeddings `[T, hidden]`; a partial sum over ranks.
    fn embed(&mut self, table: &Self::Vocab, step: &Self::Step) -> Self::Tensor;
    /// Logits `[R, V]` of hidden rows `[R, hidden]`, in f32, gathered over ranks.
    fn head(
        &mut self,
        hidden: &Self::Tensor,
        table: &Self::Vocab,
        step: &Self::Step,
    ) -> Self::Tensor;
    /// Zeros of the shape of `like`, as a residual stream.
    fn zeros(&mut self, like: &Self::Tensor, step: &Self::Step) -> Self::Tensor;
    /// `x · wᵀ + bias`, `[T, in] → [T, out]`.
    fn linear(&mut self, x: &Self::Tensor, w: &Self::Linear, step: &Self::Step) -> Self::Tensor;
    /// `activation(gate) ∘ up` of packed halves, `[T, 2·n] → [T, n]`.
    fn gated(
        &mut self,
        gate_up: Self::Tensor,
        activation: Activation,
        step: &Self::Step,
    ) -> Self::Tensor;
    /// `x / rms(x) ∘ gain`, in f32 inside.
    fn rms_norm(&mut self, x: &Self::Tensor, norm: &Self::Norm, step: &Self::Step) -> Self::Tensor;
    /// Adds `x` to `residual` in place, and returns the normalized sum.
    fn add_rms_norm(
        &mut self,
        x: Self::Tensor,
        residual: &mut Self::Tensor,
        norm: &Self::Norm,
        step: &Self::Step,
    ) -> Self::Tensor;
    /// Norms (where the layer has them) and rotates the packed `q` and `k`, and stores `k` and
    /// `v` in the tokens' slots.
    fn rope_and_store(
        &mut self,
        qkv: &mut Self::Tensor,
        attention: &Self::Attention,
        kv: &mut Self::KvCache,
        step: &Self::Step,
    );
    /// Causal attention of each token over its own sequence's blocks:
    /// `[T, (H + 2·K)·D] → [T, H·D]`. Only slots that the sequence wrote are read.
    fn paged_attention(
        &mut self,
        qkv: &Self::Tensor,
        attention: &Self::Attention,
        kv: &Self::KvCache,
        step: &Self::Step,
    ) -> Self::Tensor;
    /// Sums `partial` over ranks. The identity when there is one rank.
    fn all_reduce(&mut self, partial: Self::Tensor, step: &Self::Step) -> Self::Tensor;
    /// The rows of `x` that go to the head: `[T, n] → [R, n]`.
    fn select_logit_rows(&mut self, x: &Self::Tensor, step: &Self::Step) -> Self::Tensor;

    // ---- Fusion points. The body is the meaning; override it for speed only. The conformance
    //      suite runs the same verbs one by one to check the override.

    /// Sum over ranks, add to the residual, norm, product. A backend that quantizes activations
    /// does it once here.
    fn norm_linear(
        &mut self,
        partial: Self::Tensor,
        residual: &mut Self::Tensor,
        norm: &Self::Norm,
        w: &Self::Linear,
        step: &Self::Step,
    ) -> Self::Tensor {
        let x = self.all_reduce(partial, step);
        let x = self.add_rms_norm(x, residual, norm, step);
        self.linear(&x, w, step)
    }
    /// [`gated`](Self::gated), then [`linear`](Self::linear).
    fn gated_linear(
        &mut self,
        gate_up: Self::Tensor,
        activation: Activation,
        w: &Self::Linear,
        step: &Self::Step,
    ) -> Self::Tensor {
        let x = self.gated(gate_up, activation, step);
        self.linear(&x, w, step)
    }
    /// A gated MLP: [`norm_linear`](Self::norm_linear) to gate and up, then
    /// [`gated_linear`](Self::gated_linear) down.
    fn gated_mlp(
        &mut self,
        partial: Self::Tensor,
        residual: &mut Self::Tensor,
        norm: &Self::Norm,
        gate_up: &Self::Linear,
        activation: Activation,
        down: &Self::Linear,
        step: &Self::Step,
    ) -> Self::Tensor {
        let gate_up = self.norm_linear(partial, residual, norm, gate_up, step);
        self.gated_linear(gate_up, activation, down, step)
    }
    /// [`rope_and_store`](Self::rope_and_store), then
    /// [`paged_attention`](Self::paged_attention).
    fn attend(
        &mut self,
        mut qkv: Self::Tensor,
        attention: &Self::Attention,
        kv: &mut Self::KvCache,
        step: &Self::Step,
    ) -> Self::Tensor {
        self.rope_and_store(&mut qkv, attention, kv, step);
        self.paged_attention(&qkv, attention, kv, step)
    }
    /// Completes the last residual sum and norms the rows that go to the head:
    /// `[T, hidden] → [R, hidden]`.
    fn final_norm(
        &mut self,
        partial: Self::Tensor,
        residual: &mut Self::Tensor,
        norm: &Self::Norm,
        step: &Self::Step,
    ) -> Self::Tensor {
        let x = self.all_reduce(partial, step);
        let x = self.select_logit_rows(&x, step);
        let mut rows = self.select_logit_rows(residual, step);
        self.add_rms_norm(x, &mut rows, norm, step)
    }
}
