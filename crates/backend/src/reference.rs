//! The scalar backend: the executable meaning of every verb, in f32, without tricks.

use pagedllm_core::{
    KvGroup, LinearPart, SamplingBatch, Split, StepInput, StepOutput, TokenId, TokenSource,
    WeightView,
};

use crate::attention::{Activation, AttentionSpec, Rope};
use crate::backend::{Backend, DeviceError, WorkspaceSpec};
use crate::conformance::Probe;
use crate::dequantize;
use crate::sampler::{SamplingState, sample_batch};

/// One device, one rank, one thread, f32 throughout.
#[derive(Debug, Default)]
pub struct Reference {
    state: SamplingState,
    /// What the previous step drew, for `TokenSource::SampledBy`.
    drawn: Vec<TokenId>,
    vocab_size: usize,
}

/// `[rows, cols]`, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Values.
    pub data: Vec<f32>,
}

impl Matrix {
    fn new(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }
    /// One row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }
    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.cols..(row + 1) * self.cols]
    }
}

/// A dense matrix with its bias.
#[derive(Debug)]
pub struct DenseLinear {
    weight: Matrix,
    bias: Vec<f32>,
}

/// A gain and its epsilon.
#[derive(Debug)]
pub struct DenseNorm {
    gain: Vec<f32>,
    eps: f32,
}

/// One attention layer.
#[derive(Debug)]
pub struct DenseAttention {
    spec: AttentionSpec,
    q_norm: Option<Vec<f32>>,
    k_norm: Option<Vec<f32>>,
    sinks: Option<Vec<f32>>,
}

/// Keys and values of all groups: `[layer][slot][K, D]`, keys first.
#[derive(Debug)]
pub struct DenseKv {
    groups: Vec<DenseKvGroup>,
}

#[derive(Debug)]
struct DenseKvGroup {
    block_size: usize,
    token_len: usize,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// The input with all tokens known.
#[derive(Clone, Debug)]
pub struct DenseStep {
    input: StepInput,
    tokens: Vec<TokenId>,
}

fn rms_normalize(x: &mut [f32], gain: &[f32], eps: f32) {
    let mean = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let factor = 1.0 / (mean + eps).sqrt();
    for (x, gain) in x.iter_mut().zip(gain) {
        *x = *x * factor * gain;
    }
}

fn rotate(head: &mut [f32], rope: &Rope, position: u32) {
    let half = rope.inv_freq.len();
    for (i, &inv_freq) in rope.inv_freq.iter().enumerate() {
        let (sin, cos) = (position as f32 * inv_freq).sin_cos();
        let (sin, cos) = (sin * rope.attention_factor, cos * rope.attention_factor);
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cos - b * sin;
        head[i + half] = b * cos + a * sin;
    }
}

fn activate(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Backend for Reference {
    type Tensor = Matrix;
    type Linear = DenseLinear;
    type Norm = DenseNorm;
    type Vocab = Matrix;
    type Attention = DenseAttention;
    type KvCache = DenseKv;
    type Step = DenseStep;
    type Sampled = StepOutput;

    fn load_linear(
        &mut self,
        parts: &[LinearPart<'_>],
        _split: Split,
    ) -> Result<DenseLinear, DeviceError> {
        let cols = parts[0].weight.cols;
        let mut weight = Matrix { rows: 0, cols, data: Vec::new() };
        let mut bias = Vec::new();
        for part in parts {
            assert_eq!(part.weight.cols, cols, "{} has other inputs", part.weight.name);
            weight.rows += part.weight.rows;
            weight.data.extend(dequantize::matrix(&part.weight));
            bias.extend(match &part.bias {
                Some(bias) => dequantize::matrix(bias),
                None => vec![0.0; part.weight.rows],
            });
        }
        Ok(DenseLinear { weight, bias })
    }

    fn load_norm(&mut self, gain: &WeightView<'_>, eps: f32) -> Result<DenseNorm, DeviceError> {
        Ok(DenseNorm { gain: dequantize::matrix(gain), eps })
    }

    fn load_vocab(&mut self, table: &WeightView<'_>) -> Result<Matrix, DeviceError> {
        Ok(Matrix { rows: table.rows, cols: table.cols, data: dequantize::matrix(table) })
    }

    fn load_attention(
        &mut self,
        spec: &AttentionSpec,
        q_norm: Option<&WeightView<'_>>,
        k_norm: Option<&WeightView<'_>>,
        sinks: Option<&WeightView<'_>>,
    ) -> Result<DenseAttention, DeviceError> {
        Ok(DenseAttention {
            spec: spec.clone(),
            q_norm: q_norm.map(dequantize::matrix),
            k_norm: k_norm.map(dequantize::matrix),
            sinks: sinks.map(dequantize::matrix),
        })
    }

    fn reserve_workspace(&mut self, spec: &WorkspaceSpec) -> Result<(), DeviceError> {
        self.vocab_size = spec.vocab_size;
        Ok(())
    }

    fn free_bytes(&self) -> u64 {
        1 << 30
    }

    fn allocate_kv_cache(
        &mut self,
        groups: &[KvGroup],
        num_blocks: usize,
    ) -> Result<DenseKv, DeviceError> {
        let groups = groups.iter().map(|group| {
            let layout = group.layout;
            let token_len = layout.num_kv_heads * layout.head_dim;
            // Not a number until written, so that a read of an unwritten slot shows.
            let empty = vec![f32::NAN; num_blocks * layout.block_size * token_len];
            let layers = vec![empty; group.layers.len()];
            DenseKvGroup {
                block_size: layout.block_size,
                token_len,
                keys: layers.clone(),
                values: layers,
            }
        });
        Ok(DenseKv { groups: groups.collect() })
    }

    fn begin_step(&mut self, kv: &mut DenseKv, input: &StepInput) -> DenseStep {
        for copy in &input.copies {
            for group in &mut kv.groups {
                let len = group.block_size * group.token_len;
                let source = copy.source.index() * len;
                for layer in group.keys.iter_mut().chain(&mut group.values) {
                    layer.copy_within(source..source + len, copy.target.index() * len);
                }
            }
        }
        self.state.apply(&input.state_ops);
        let tokens = input.batch.token_ids.iter().map(|token| match *token {
            TokenSource::Known(token) => token,
            TokenSource::SampledBy { row } => self.drawn[row as usize],
        });
        DenseStep { tokens: tokens.collect(), input: input.clone() }
    }

    fn sample(
        &mut self,
        logits: Option<Matrix>,
        _step: &DenseStep,
        sampling: &SamplingBatch,
    ) -> StepOutput {
        let rows = match logits {
            Some(logits) => sample_batch(&logits.data, logits.cols, sampling, &mut self.state),
            None => Vec::new(),
        };
        self.drawn = rows.iter().map(|row| row.tokens.last().copied().unwrap_or(0)).collect();
        StepOutput { rows }
    }

    fn wait(&mut self, sampled: StepOutput) -> Result<StepOutput, DeviceError> {
        Ok(sampled)
    }

    fn embed(&mut self, table: &Matrix, step: &DenseStep) -> Matrix {
        let mut out = Matrix::new(step.tokens.len(), table.cols);
        for (row, &token) in step.tokens.iter().enumerate() {
            out.row_mut(row).copy_from_slice(table.row(token as usize));
        }
        out
    }

    fn head(&mut self, hidden: &Matrix, table: &Matrix, _step: &DenseStep) -> Matrix {
        let mut out = Matrix::new(hidden.rows, table.rows);
        for row in 0..hidden.rows {
            for token in 0..table.rows {
                out.row_mut(row)[token] = dot(hidden.row(row), table.row(token));
            }
        }
        out
    }

    fn zeros(&mut self, like: &Matrix, _step: &DenseStep) -> Matrix {
        Matrix::new(like.rows, like.cols)
    }

    fn linear(&mut self, x: &Matrix, w: &DenseLinear, _step: &DenseStep) -> Matrix {
        assert_eq!(x.cols, w.weight.cols);
        let mut out = Matrix::new(x.rows, w.weight.rows);
        for row in 0..x.rows {
            for col in 0..w.weight.rows {
                out.row_mut(row)[col] = dot(x.row(row), w.weight.row(col)) + w.bias[col];
            }
        }
        out
    }

    fn gated(&mut self, gate_up: Matrix, activation: Activation, _step: &DenseStep) -> Matrix {
        let half = gate_up.cols / 2;
        let mut out = Matrix::new(gate_up.rows, half);
        for row in 0..gate_up.rows {
            let (gate, up) = gate_up.row(row).split_at(half);
            for (out, (&gate, &up)) in out.row_mut(row).iter_mut().zip(gate.iter().zip(up)) {
                *out = activate(gate, activation) * up;
            }
        }
        out
    }

    fn rms_norm(&mut self, x: &Matrix, norm: &DenseNorm, _step: &DenseStep) -> Matrix {
        let mut out = x.clone();
        for row in 0..out.rows {
            rms_normalize(out.row_mut(row), &norm.gain, norm.eps);
        }
        out
    }

    fn add_rms_norm(
        &mut self,
        x: Matrix,
        residual: &mut Matrix,
        norm: &DenseNorm,
        step: &DenseStep,
    ) -> Matrix {
        assert_eq!(x.data.len(), residual.data.len());
        for (residual, x) in residual.data.iter_mut().zip(&x.data) {
            *residual += x;
        }
        self.rms_norm(residual, norm, step)
    }

    fn rope_and_store(
        &mut self,
        qkv: &mut Matrix,
        attention: &DenseAttention,
        kv: &mut DenseKv,
        step: &DenseStep,
    ) {
        let spec = &attention.spec;
        let (dim, num_heads, num_kv_heads) = (spec.head_dim, spec.num_heads, spec.num_kv_heads);
        let group = &mut kv.groups[spec.group];
        let batch = &step.input.batch;
        for token in 0..qkv.rows {
            let row = qkv.row_mut(token);
            for (index, head) in
                row.chunks_exact_mut(dim).take(num_heads + num_kv_heads).enumerate()
            {
                let norm = if index < num_heads { &attention.q_norm } else { &attention.k_norm };
                if let Some(gain) = norm {
                    rms_normalize(head, gain, spec.qk_norm_eps);
                }
                if let Some(rope) = &spec.rope {
                    rotate(head, rope, batch.positions[token]);
                }
            }
            let (keys, values) = row[num_heads * dim..].split_at(num_kv_heads * dim);
            let slot = batch.groups[spec.group].slot_mapping[token] as usize;
            let place = slot * group.token_len..(slot + 1) * group.token_len;
            group.keys[spec.layer_in_group][place.clone()].copy_from_slice(keys);
            group.values[spec.layer_in_group][place].copy_from_slice(values);
        }
    }

    fn paged_attention(
        &mut self,
        qkv: &Matrix,
        attention: &DenseAttention,
        kv: &DenseKv,
        step: &DenseStep,
    ) -> Matrix {
        let spec = &attention.spec;
        let dim = spec.head_dim;
        let group = &kv.groups[spec.group];
        let batch = &step.input.batch;
        let tables = &batch.groups[spec.group];
        let mut out = Matrix::new(qkv.rows, spec.num_heads * dim);
        for chunk in 0..batch.num_seqs() {
            let table = &tables.block_tables[chunk * tables.max_blocks..][..tables.max_blocks];
            let at = |position: usize, kv_head: usize| {
                let block = table[position / group.block_size] as usize;
                let slot = block * group.block_size + position % group.block_size;
                slot * group.token_len + kv_head * dim
            };
            for token in batch.chunk(chunk) {
                let position = batch.positions[token] as usize;
                let first = spec.window.map_or(0, |window| (position + 1).saturating_sub(window));
                for head in 0..spec.num_heads {
                    let kv_head = head / (spec.num_heads / spec.num_kv_heads);
                    let query = &qkv.row(token)[head * dim..][..dim];
                    let keys = &group.keys[spec.layer_in_group];
                    let scores: Vec<f32> = (first..=position)
                        .map(|position| {
                            let score =
                                spec.scale * dot(query, &keys[at(position, kv_head)..][..dim]);
                            spec.soft_cap.map_or(score, |cap| cap * (score / cap).tanh())
                        })
                        .collect();
                    let sink = attention.sinks.as_ref().map(|sinks| sinks[head]);
                    let best = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
                    let mut total = sink.map_or(0.0, |sink| (sink - best).exp());
                    let out = &mut out.row_mut(token)[head * dim..][..dim];
                    let values = &group.values[spec.layer_in_group];
                    for (position, score) in (first..=position).zip(scores) {
                        let weight = (score - best).exp();
                        total += weight;
                        let value = &values[at(position, kv_head)..][..dim];
                        for (out, value) in out.iter_mut().zip(value) {
                            *out += weight * value;
                        }
                    }
                    for out in out {
                        *out /= total;
                    }
                }
            }
        }
        out
    }

    fn all_reduce(&mut self, partial: Matrix, _step: &DenseStep) -> Matrix {
        partial
    }

    fn select_logit_rows(&mut self, x: &Matrix, step: &DenseStep) -> Matrix {
        let rows = &step.input.batch.logit_rows;
        let mut out = Matrix::new(rows.len(), x.cols);
        for (index, &row) in rows.iter().enumerate() {
            out.row_mut(index).copy_from_slice(x.row(row as usize));
        }
        out
    }
}

impl Probe for Reference {
    fn upload(&mut self, rows: usize, cols: usize, values: &[f32]) -> Matrix {
        Matrix { rows, cols, data: values.to_vec() }
    }
    fn upload_residual(&mut self, rows: usize, cols: usize, values: &[f32]) -> Matrix {
        self.upload(rows, cols, values)
    }
    fn upload_logits(&mut self, rows: usize, cols: usize, values: &[f32]) -> Matrix {
        self.upload(rows, cols, values)
    }
    fn download(&mut self, tensor: &Matrix) -> Vec<f32> {
        tensor.data.clone()
    }
    fn poison(&mut self, kv: &mut DenseKv) {
        for group in &mut kv.groups {
            for layer in group.keys.iter_mut().chain(&mut group.values) {
                layer.fill(f32::NAN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Claims, check};

    #[test]
    fn the_suite_accepts_the_reference() {
        let claims = Claims { head_dims: vec![64], ..Claims::exact() };
        check(Reference::default, &claims);
    }
}
