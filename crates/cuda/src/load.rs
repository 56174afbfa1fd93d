//! Loading: weights, attention layers, workspace. The only allocations.

use std::sync::Arc;

use pagedllm_backend::{AttentionSpec, DeviceError, DummyMatrix, Rope, WorkspaceSpec};
use pagedllm_core::{DType, LinearPart, WeightView};

use crate::backend::{CudaBackend, Work};
use crate::device::DeviceBuffer;
use crate::dispatch::{self, AttentionKernels, MAX_HEAD_DIM};
use crate::launch::{Arg, Function, Shape, launch};
use crate::linear::{Linear, Norm, Vocab, Weights};
use crate::plan::GroupShape;
use crate::sample::Sampler;
use crate::step::{Lists, StepArea};
use crate::weights::padded;
use crate::workspace::Arena;

/// Words of the lists that a step may bring at once; longer ones go in pieces.
const LIST_WORDS: usize = 1 << 14;
/// Room in the arena beside what the sizes ask for, for rounding and fragments.
const SLACK_BYTES: usize = 4 << 20;
/// Row widths that every kernel can read in vectors.
const COLUMN_MULTIPLE: usize = 8;

/// One attention layer.
#[derive(Debug)]
pub struct Attention {
    pub(crate) spec: AttentionSpec,
    pub(crate) kernels: AttentionKernels,
    pub(crate) decode: Function,
    /// Decode that rotates and stores as well, where there is such a kernel for the layer.
    pub(crate) attend: Option<Function>,
    pub(crate) prefill: Function,
    pub(crate) rope_and_store: Function,
    /// Whether that is the kernel of heads that turn whole.
    pub(crate) turns_whole: bool,
    pub(crate) q_gain: Option<DeviceBuffer>,
    pub(crate) k_gain: Option<DeviceBuffer>,
    pub(crate) sinks: Option<DeviceBuffer>,
    pub(crate) rope: Option<Arc<DeviceBuffer>>,
}

fn needs_multiple(what: &str, cols: usize) -> Result<(), DeviceError> {
    if cols.is_multiple_of(COLUMN_MULTIPLE) {
        return Ok(());
    }
    Err(DeviceError::Unsupported(format!(
        "{what} has {cols} columns; a multiple of {COLUMN_MULTIPLE} is needed"
    )))
}

impl CudaBackend {
    pub(crate) fn upload_linear(
        &mut self,
        parts: &[LinearPart<'_>],
    ) -> Result<Linear, DeviceError> {
        let dtype = self.options.dtype;
        let inputs = parts[0].weight.cols;
        let outputs: usize = parts.iter().map(|part| part.weight.rows).sum();
        let bytes = padded(outputs * inputs * dtype.size());
        let weights = DeviceBuffer::new(&self.device, bytes, &parts[0].weight.name)?;
        let bias = if parts.iter().any(|part| part.bias.is_some()) {
            let bytes = padded(outputs * dtype.size());
            Some(DeviceBuffer::zeroed(&self.device, bytes, &parts[0].weight.name)?)
        } else {
            None
        };
        let mut row = 0;
        for part in parts {
            let weight = &part.weight;
            assert_eq!(weight.cols, inputs, "{} has other inputs", weight.name);
            let place = (row * inputs * dtype.size()) as u64;
            self.loader.copy(weight, dtype, weights.address() + place)?;
            if let (Some(from), Some(to)) = (&part.bias, &bias) {
                self.loader.copy(from, dtype, to.address() + (row * dtype.size()) as u64)?;
            }
            row += weight.rows;
        }
        Ok(Linear { weights: Weights::Dense(weights), bias, outputs, inputs })
    }

    pub(crate) fn upload_norm(
        &mut self,
        gain: &WeightView<'_>,
        eps: f32,
    ) -> Result<Norm, DeviceError> {
        let cols = gain.rows * gain.cols;
        needs_multiple(&gain.name, cols)?;
        Ok(Norm { gain: self.loader.load(gain, DType::F32)?, cols, eps })
    }

    pub(crate) fn upload_vocab(&mut self, table: &WeightView<'_>) -> Result<Vocab, DeviceError> {
        needs_multiple(&table.name, table.cols)?;
        let loaded = self.loader.load(table, self.options.dtype)?;
        Ok(Vocab { table: loaded, rows: table.rows, cols: table.cols })
    }

    /// Made-up weights, filled in on the device.
    pub(crate) fn make_linear(&mut self, parts: &[DummyMatrix]) -> Result<Linear, DeviceError> {
        let dtype = self.options.dtype;
        let inputs = parts[0].cols;
        needs_multiple(&parts[0].name, inputs)?;
        let outputs: usize = parts.iter().map(|part| part.rows).sum();
        let bytes = padded(outputs * inputs * dtype.size());
        let weights = DeviceBuffer::new(&self.device, bytes, &parts[0].name)?;
        let mut row = 0;
        for part in parts {
            assert_eq!(part.cols, inputs, "{} has other inputs", part.name);
            self.fill(part, weights.address() + (row * inputs * dtype.size()) as u64)?;
            row += part.rows;
        }
        let bias = if parts.iter().any(|part| part.has_bias) {
            let bytes = padded(outputs * dtype.size());
            Some(DeviceBuffer::zeroed(&self.device, bytes, &parts[0].name)?)
        } else {
            None
        };
        Ok(Linear { weights: Weights::Dense(weights), bias, outputs, inputs })
    }

    pub(crate) fn make_vocab(&mut self, table: &DummyMatrix) -> Result<Vocab, DeviceError> {
        needs_multiple(&table.name, table.cols)?;
        let bytes = padded(table.rows * table.cols * self.options.dtype.size());
        let buffer = DeviceBuffer::new(&self.device, bytes, &table.name)?;
        self.fill(table, buffer.address())?;
        Ok(Vocab { table: buffer, rows: table.rows, cols: table.cols })
    }

    fn fill(&mut self, matrix: &DummyMatrix, to: u64) -> Result<(), DeviceError> {
        let name = format!("fill_random_{}", dispatch::suffix(self.options.dtype));
        let args = [
            Arg::U64(to),
            Arg::U64((matrix.rows * matrix.cols) as u64),
            Arg::U32(matrix.seed()),
            Arg::F32(matrix.scale()),
        ];
        let shape = Shape::new([4 * self.device.num_sms, 1, 1], 512);
        launch(&self.device, self.kernels.get(&name)?, shape, &args)
    }

    pub(crate) fn prepare_attention(
        &mut self,
        spec: &AttentionSpec,
        q_norm: Option<&WeightView<'_>>,
        k_norm: Option<&WeightView<'_>>,
        sinks: Option<&WeightView<'_>>,
    ) -> Result<Attention, DeviceError> {
        if spec.head_dim > MAX_HEAD_DIM || !spec.head_dim.is_multiple_of(2) {
            return Err(DeviceError::Unsupported(format!(
                "heads of width {}; even and at most {MAX_HEAD_DIM}",
                spec.head_dim
            )));
        }
        let (dtype, kv_dtype) = (self.options.dtype, self.options.kv_dtype);
        let heads_per_kv = spec.num_heads / spec.num_kv_heads;
        // Code for plain sm_90 lacks them.
        let has_hopper = self.device.capability == 90
            && self.kernels.get("paged_attention_prefill_sm90_bf16_d128").is_ok();
        let kernels = dispatch::attention(dtype, kv_dtype, spec.head_dim, heads_per_kv, has_hopper);
        let decode = self.kernels.get(&kernels.decode)?;
        let prefill = self.kernels.get(&kernels.prefill)?;
        let tiles = self.decode_tiles(&kernels).min(dispatch::MAX_DECODE_TILES);
        let decode_shared = kernels.decode_tile_bytes * tiles;
        decode.allow_shared(decode_shared)?;
        // Heads turn whole or not at all, and have no norms.
        let is_plain = q_norm.is_none()
            && k_norm.is_none()
            && spec.rope.as_ref().is_none_or(|rope| rope.inv_freq.len() * 2 == spec.head_dim);
        let attend = kernels
            .attend
            .as_ref()
            .filter(|_| is_plain)
            .map(|name| self.kernels.get(name))
            .transpose()?;
        if let Some(attend) = attend {
            attend.allow_shared(decode_shared)?;
        }
        prefill.allow_shared(kernels.prefill_shared)?;
        let (name, kv_name) = (dispatch::suffix(dtype), dispatch::suffix(kv_dtype));
        let turns_whole = is_plain
            && spec.rope.is_some()
            && dtype == kv_dtype
            && dtype.size() == 2
            && spec.head_dim.is_multiple_of(16);
        let rope_and_store = self.kernels.get(&if turns_whole {
            format!("rope_and_store_whole_{name}")
        } else {
            format!("rope_and_store_{name}_{kv_name}")
        })?;
        let mut gain = |view: Option<&WeightView<'_>>| {
            view.map(|view| self.loader.load(view, DType::F32)).transpose()
        };
        let (q_gain, k_gain, sinks) = (gain(q_norm)?, gain(k_norm)?, gain(sinks)?);
        let rope = spec.rope.as_ref().map(|rope| self.rope_table(rope)).transpose()?;
        self.add_to_group(spec, &kernels);
        let spec = spec.clone();
        Ok(Attention {
            spec,
            kernels,
            decode,
            attend,
            prefill,
            rope_and_store,
            turns_whole,
            q_gain,
            k_gain,
            sinks,
            rope,
        })
    }

    /// Tiles of keys and values that the shared memory of a multiprocessor holds.
    pub(crate) fn decode_tiles(&self, kernels: &AttentionKernels) -> usize {
        self.device.shared_bytes.checked_div(kernels.decode_tile_bytes).unwrap_or(0)
    }

    fn add_to_group(&mut self, spec: &AttentionSpec, kernels: &AttentionKernels) {
        let heads_per_kv = spec.num_heads / spec.num_kv_heads;
        let shape = GroupShape {
            kv_heads: spec.num_kv_heads,
            heads_per_kv,
            out_cols: spec.num_heads * spec.head_dim,
            tile_tokens: if kernels.decode_rows.is_some() {
                kernels.prefill_rows / heads_per_kv
            } else {
                kernels.prefill_rows
            },
            window: spec.window,
            sharing: match (kernels.decode_rows, spec.window) {
                (Some(rows), None) => rows / heads_per_kv,
                _ => 1,
            },
        };
        while self.groups.len() <= spec.group {
            self.groups.push(GroupShape::default());
        }
        self.groups[spec.group] = self.groups[spec.group].merged(&shape);
    }

    fn rope_table(&mut self, rope: &Rope) -> Result<Arc<DeviceBuffer>, DeviceError> {
        if let Some((_, table)) = self.ropes.iter().find(|(known, _)| known == rope) {
            return Ok(table.clone());
        }
        let (half, positions) = (rope.inv_freq.len(), rope.max_positions);
        let view = WeightView {
            name: "rope frequencies".into(),
            format: pagedllm_core::WeightFormat::F32,
            rows: 1,
            cols: half,
            data: bytemuck::cast_slice(&rope.inv_freq).into(),
        };
        let inv_freq = self.loader.load(&view, DType::F32)?;
        let bytes = half * positions * 8;
        let table = Arc::new(DeviceBuffer::new(&self.device, bytes, "the rope table")?);
        let args = [
            Arg::U64(inv_freq.address()),
            Arg::U64(table.address()),
            Arg::U32(half as u32),
            Arg::U32(positions as u32),
            Arg::F32(rope.attention_factor),
        ];
        let shape = Shape::new([(half * positions).div_ceil(256), 1, 1], 256);
        launch(&self.device, self.kernels.get("rope_table")?, shape, &args)?;
        self.ropes.push((rope.clone(), table.clone()));
        Ok(table)
    }

    pub(crate) fn reserve(&mut self, spec: &WorkspaceSpec) -> Result<(), DeviceError> {
        if self.groups.is_empty() {
            self.groups.push(GroupShape::default());
        }
        let size = self.options.dtype.size();
        let tokens = spec.max_num_batched_tokens.max(spec.max_num_seqs);
        let layers = tokens * (spec.hidden_size * (4 + 3 * size) + 2 * spec.max_cols * size)
            + spec.max_logit_rows * spec.hidden_size * (4 + 2 * size);
        let sampling = spec.max_logit_rows * (spec.vocab_size * 4 + spec.hidden_size * size)
            + spec.max_num_seqs * spec.vocab_size * 4;
        let device = &self.device;
        let widest = |f: fn(&GroupShape) -> usize| self.groups.iter().map(f).max().unwrap_or(0);
        let extra = self.groups.iter().map(|g| g.extra_splits(device.num_sms)).max().unwrap_or(0);
        let partials = self.groups.iter().map(|g| g.max_partials(spec.max_num_seqs, extra));
        let partials = partials.max().unwrap_or(0);
        let out_cols = widest(|group| group.out_cols);
        // A head has at least one column, and heads of one kv head are taken 16 at a time.
        let heads = widest(|group| group.kv_heads * group.heads_per_kv);
        let arrived = widest(|group| group.kv_heads * group.heads_per_kv.div_ceil(16));
        let buffer = |bytes: usize| DeviceBuffer::zeroed(device, bytes, "attention");
        let mut buckets = self.options.graph_batch_sizes.clone();
        buckets.retain(|&bucket| bucket > 0 && bucket <= spec.max_num_seqs);
        buckets.sort_unstable();
        self.work = Some(Work {
            arena: Arena::new(device, layers.max(sampling) + SLACK_BYTES)?,
            area: StepArea::new(device, spec, &self.groups)?,
            lists: Lists::new(device, LIST_WORDS)?,
            sampler: Sampler::new(device, spec)?,
            partial_out: buffer(partials * out_cols * 4)?,
            partial_stats: buffer(partials * heads * 8)?,
            arrived: buffer(spec.max_num_seqs * arrived * 4)?,
            buckets,
        });
        Ok(())
    }
}
