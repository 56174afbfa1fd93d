//! The verbs as launches: which kernel, which shape, which arguments.

mod attention;
mod few_rows;

use std::collections::HashMap;

use pagedllm_backend::{Activation, DeviceError};
use pagedllm_core::{BlockCopy, DType, SamplingBatch, StateOp, StepInput};

use crate::backend::CudaBackend;
use crate::device::{DeviceBuffer, copy_bytes, fill_words};
use crate::dispatch::{self, suffix};
use crate::kernel::Kernels;
use crate::kv::KvCache;
use crate::launch::blas::Product;
use crate::launch::{Arg, Function, Shape, launch};
use crate::linear::{DenseProduct, Linear, Norm, Vocab, Weights};
use crate::plan::SLICES;
use crate::sample::Sampled;
use crate::step::{StatePiece, Step, independent_runs, state_pieces};
pub(crate) use crate::verbs::few_rows::Pending;
use crate::verbs::few_rows::{FewRows, NormPart};
use crate::workspace::Tensor;

/// Kernels that every model uses, looked up once.
#[derive(Debug)]
pub(crate) struct Verbs {
    embed: Function,
    add_rms_norm: Function,
    rms_norm: Function,
    rms_norm_f32: Function,
    gated_silu: Function,
    gated_gelu_tanh: Function,
    select_rows: Function,
    copy_blocks: Function,
    unpack_step: Function,
    sample_adjust: Function,
    sample_scan: Function,
    sample_histogram: Function,
    sample_draw: Function,
    sample_logprobs: Function,
    state_count: Function,
    one_row: HashMap<DType, Function>,
    /// Products of one row after a norm; `None` where the device computes in f32.
    normed: Option<Normed>,
    /// Products of few rows; `None` where the device has no kernel for them.
    few_rows: Option<FewRows>,
    any: HashMap<DType, Function>,
}

/// Products of one row after a norm.
#[derive(Debug)]
struct Normed {
    plain: Function,
    /// With a gate behind the product.
    silu: Function,
    gelu_tanh: Function,
}

impl Normed {
    fn new(kernels: &Kernels, dtype: DType) -> Result<Self, DeviceError> {
        let get =
            |kind: &str| kernels.get(&format!("linear_one_row_normed_{kind}{}", suffix(dtype)));
        Ok(Self { plain: get("")?, silu: get("silu_")?, gelu_tanh: get("gelu_tanh_")? })
    }
    fn with(&self, activation: Option<Activation>) -> Function {
        match activation {
            None => self.plain,
            Some(Activation::Silu) => self.silu,
            Some(Activation::GeluTanh) => self.gelu_tanh,
        }
    }
}

impl Verbs {
    pub fn new(kernels: &Kernels, dtype: DType) -> Result<Self, DeviceError> {
        let get = |name: &str| kernels.get(name);
        let name = suffix(dtype);
        let mut one_row = HashMap::new();
        let mut any = HashMap::new();
        for out in [dtype, DType::F32] {
            any.insert(out, get(&format!("linear_any_{name}_{}", suffix(out)))?);
            if dtype.size() == 2 {
                one_row.insert(out, get(&format!("linear_one_row_{name}_{}", suffix(out)))?);
            }
        }
        Ok(Self {
            embed: get(&format!("embed_{name}"))?,
            add_rms_norm: get(&format!("add_rms_norm_{name}"))?,
            rms_norm: get(&format!("rms_norm_{name}_{name}"))?,
            rms_norm_f32: get(&format!("rms_norm_f32_{name}"))?,
            gated_silu: get(&dispatch::gated(Activation::Silu, dtype))?,
            gated_gelu_tanh: get(&dispatch::gated(Activation::GeluTanh, dtype))?,
            select_rows: get("select_rows")?,
            copy_blocks: get("copy_blocks")?,
            unpack_step: get("unpack_step")?,
            sample_adjust: get("sample_adjust")?,
            sample_scan: get("sample_scan")?,
            sample_histogram: get("sample_histogram")?,
            sample_draw: get("sample_draw")?,
            sample_logprobs: get("sample_logprobs")?,
            state_count: get("state_count")?,
            one_row,
            normed: if dtype.size() == 2 { Some(Normed::new(kernels, dtype)?) } else { None },
            few_rows: FewRows::new(kernels, dtype)?,
            any,
        })
    }
}

fn address(buffer: Option<&DeviceBuffer>) -> u64 {
    buffer.map_or(0, DeviceBuffer::address)
}

/// Threads of a block that takes a row of `cols`, four columns a thread and turn.
fn row_threads(cols: usize) -> usize {
    cols.div_ceil(4).next_multiple_of(32).clamp(32, 1024)
}

/// Blocks of the normed product of one row that a multiprocessor runs at once.
const NORMED_BLOCKS_PER_SM: usize = 2;

/// The launch of a product of one row: a warp an output, and x in shared memory.
fn one_row_shape(outputs: usize, inputs: usize) -> Shape {
    Shape { shared: inputs * 2, ..Shape::new([outputs.div_ceil(8), 1, 1], 256) }
}

impl CudaBackend {
    /// Gives the stream what `work` issues. All that verbs issue goes through here, and so behind the
    /// product that waits.
    fn submit(&mut self, work: impl FnOnce(&mut Self) -> Result<(), DeviceError>) {
        self.issue_pending();
        if self.fault.is_none() {
            let submitted = work(self);
            self.note(submitted);
        }
    }

    fn issue(&mut self, function: Function, shape: Shape, args: &[Arg<'_>]) {
        self.submit(|b| launch(&b.device, function, shape, args));
    }

    fn take(&self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        self.work().arena.take(rows, cols, dtype)
    }

    // ---- Step boundary.

    pub(crate) fn copy_blocks(
        &mut self,
        kv: &KvCache,
        copies: &[BlockCopy],
    ) -> Result<(), DeviceError> {
        let limit = self.work().lists.capacity() / 2;
        for run in independent_runs(copies, limit) {
            let words: Vec<u32> =
                run.iter().flat_map(|copy| [copy.source.get(), copy.target.get()]).collect();
            let list = self.work_mut().lists.upload(words.into_iter())?;
            for group in &kv.groups {
                let args = [
                    Arg::U64(group.buffer.address()),
                    Arg::U64(list),
                    Arg::U64((group.plane_bytes / 16) as u64),
                    Arg::U32((group.block_bytes / 16) as u32),
                ];
                let shape = Shape::new([group.planes, run.len(), 1], 256);
                launch(&self.device, self.verbs.copy_blocks, shape, &args)?;
            }
        }
        Ok(())
    }

    pub(crate) fn change_state(&mut self, ops: &[StateOp]) -> Result<(), DeviceError> {
        let sampler = &self.work().sampler;
        let (vocab, state) = (sampler.vocab, sampler.state.address());
        let row_bytes = vocab * 4;
        let address = |row: u32| {
            let start = row as usize * row_bytes;
            assert!(start + row_bytes <= sampler.state.bytes(), "state row {row}");
            state + start as u64
        };
        let limit = self.work().lists.capacity();
        let mut issued = Vec::new();
        for piece in state_pieces(ops, limit) {
            match piece {
                StatePiece::Clear { row } => issued.push((address(row), piece)),
                StatePiece::Copy { to, .. } => issued.push((address(to), piece)),
                StatePiece::Count { row, .. } => issued.push((address(row), piece)),
            }
        }
        for (to, piece) in issued {
            match piece {
                StatePiece::Clear { .. } => fill_words(&self.device, to, 0, vocab)?,
                StatePiece::Copy { from, .. } => {
                    let from = state + (from as usize * row_bytes) as u64;
                    copy_bytes(&self.device, from, to, row_bytes)?;
                }
                StatePiece::Count { tokens, is_prompt, .. } => {
                    let list = self.work_mut().lists.upload(tokens.iter().copied())?;
                    let count = tokens.len() as u32;
                    let args = [
                        Arg::U64(to),
                        Arg::U64(list),
                        Arg::U32(if is_prompt { count } else { 0 }),
                        Arg::U32(count),
                        Arg::U32(vocab as u32),
                    ];
                    let shape = Shape::new([tokens.len().div_ceil(256), 1, 1], 256);
                    launch(&self.device, self.verbs.state_count, shape, &args)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn upload_step(
        &mut self,
        input: &StepInput,
        padded: Option<usize>,
    ) -> Result<Step, DeviceError> {
        let (step, packed) = self.work_mut().area.upload(input, padded)?;
        let sampled = self.work().sampler.sampled.address();
        let shape = Shape::new([packed.largest.div_ceil(1024).max(1), packed.num_segments, 1], 256);
        let args = [Arg::U64(packed.landing), Arg::U64(sampled)];
        launch(&self.device, self.verbs.unpack_step, shape, &args)?;
        Ok(step)
    }

    pub(crate) fn start_sampling(
        &mut self,
        logits: Option<&Tensor>,
        sampling: &SamplingBatch,
    ) -> Result<Sampled, DeviceError> {
        let Some(logits) = logits.filter(|_| !sampling.rows.is_empty()) else {
            return self.work_mut().sampler.finish(&SamplingBatch::default(), 0);
        };
        let rows = self.work_mut().sampler.upload(sampling)?;
        let sampler = &self.work().sampler;
        let vocab = logits.cols();
        assert_eq!(vocab, sampler.vocab, "logits are over the vocabulary");
        let (slices, sampled) = (sampler.slices.address(), sampler.sampled.address());
        let state = sampler.state.address();
        let histograms = sampler.histograms.address();
        let scratch = self.take(rows.num_adjusted, vocab, DType::F32);
        let (x, vocab) = (Arg::U64(logits.address()), Arg::U32(vocab as u32));
        let (list, scratch_rows) = (Arg::U64(rows.rows), Arg::U64(rows.scratch_rows));
        let (scratch, slices) = (Arg::U64(scratch.address()), Arg::U64(slices));
        let issue = |function, grid, threads, args: &[Arg<'_>]| {
            launch(&self.device, function, Shape::new(grid, threads), args)
        };
        issue(
            self.verbs.sample_adjust,
            [SLICES, rows.num_adjusted, 1],
            256,
            &[
                x,
                list,
                Arg::U64(rows.adjusted_rows),
                scratch,
                Arg::U64(rows.masks),
                Arg::U64(rows.biases),
                Arg::U64(state),
                vocab,
            ],
        )?;
        issue(
            self.verbs.sample_scan,
            [SLICES, rows.num_rows, 1],
            256,
            &[x, list, scratch, scratch_rows, slices, vocab],
        )?;
        let results = Arg::U64(rows.results);
        let histograms = Arg::U64(histograms);
        let filtered = Arg::U64(rows.filtered_rows);
        issue(
            self.verbs.sample_histogram,
            [SLICES, rows.num_filtered, 1],
            256,
            &[x, list, scratch, scratch_rows, filtered, slices, histograms, vocab],
        )?;
        issue(
            self.verbs.sample_draw,
            [rows.num_rows, 1, 1],
            1024,
            &[
                x,
                list,
                scratch,
                scratch_rows,
                slices,
                Arg::U64(rows.histogram_rows),
                histograms,
                Arg::U64(sampled),
                results,
                Arg::U64(state),
                vocab,
            ],
        )?;
        issue(
            self.verbs.sample_logprobs,
            [rows.num_logprobs, 1, 1],
            1024,
            &[
                x,
                list,
                Arg::U64(rows.logprob_rows),
                slices,
                results,
                Arg::U64(rows.logprobs),
                vocab,
            ],
        )?;
        self.work_mut().sampler.finish(sampling, rows.num_logprobs)
    }

    // ---- Verbs.

    pub(crate) fn issue_embed(&mut self, table: &Vocab, step: &Step) -> Tensor {
        let rows = self.rows(step.num_tokens, step);
        let out = self.take(rows, table.cols, self.options.dtype);
        let args = [
            Arg::U64(table.table.address()),
            Arg::U64(self.work().area.token_ids),
            Arg::U64(out.address()),
            Arg::U32(table.cols as u32),
            Arg::U32(table.rows as u32),
        ];
        let threads = row_threads(table.cols / 2).min(512);
        self.issue(self.verbs.embed, Shape::new([rows, 1, 1], threads), &args);
        out
    }

    /// `real` rows, or those of the recorded shape while it is recorded.
    fn rows(&self, real: usize, step: &Step) -> usize {
        step.padded.filter(|_| self.is_recording).unwrap_or(real)
    }

    pub(crate) fn issue_head(&mut self, hidden: &Tensor, table: &Vocab, step: &Step) -> Tensor {
        let rows = step.num_logit_rows.min(hidden.rows());
        let out = self.take(rows, table.rows, DType::F32);
        self.issue_product(DenseProduct {
            x: hidden.address(),
            w: table.table.address(),
            bias: 0,
            y: out.address(),
            rows,
            outputs: table.rows,
            inputs: table.cols,
            out_dtype: DType::F32,
        });
        out
    }

    pub(crate) fn issue_zeros(&mut self, like: &Tensor) -> Tensor {
        let out = self.take(like.rows(), like.cols(), DType::F32);
        let words = like.rows() * like.cols();
        self.submit(|b| fill_words(&b.device, out.address(), 0, words));
        out
    }

    pub(crate) fn issue_linear(&mut self, x: &Tensor, w: &Linear) -> Tensor {
        let out = self.take(x.rows(), w.outputs, self.options.dtype);
        let product = w.product(x, &out);
        if !self.keep_pending(product) {
            self.issue_product(product);
        }
        out
    }

    fn issue_product(&mut self, p: DenseProduct) {
        if self.fault.is_some() || p.rows == 0 {
            return;
        }
        if self.issue_few_rows(p, None, NormPart::None) {
            return;
        }
        let dtype = self.options.dtype;
        let args = [
            Arg::U64(p.w),
            Arg::U64(p.x),
            Arg::U64(p.bias),
            Arg::U64(p.y),
            Arg::U32(p.outputs as u32),
            Arg::U32(p.inputs as u32),
        ];
        if dispatch::is_one_row(p.rows, p.inputs, dtype) {
            let function = self.verbs.one_row[&p.out_dtype];
            let shape = one_row_shape(p.outputs, p.inputs);
            self.issue(function, shape, &args);
            return;
        }
        let product = Product {
            rows: p.rows,
            outputs: p.outputs,
            inputs: p.inputs,
            dtype,
            out_dtype: p.out_dtype,
            has_bias: p.bias != 0,
        };
        self.submit(|b| match b.blas.multiply(product, p.x, p.w, p.bias, p.y) {
            Err(DeviceError::Unsupported(_)) => {
                let shape = Shape::new([p.outputs.div_ceil(8), p.rows, 1], 256);
                launch(&b.device, b.verbs.any[&p.out_dtype], shape, &args)
            }
            result => result,
        });
    }

    /// The sum with the residual stream, normed, times `w`; with an activation, that of gate and up.
    /// `None` where neither a kernel does all of it nor the products before and behind the norm do.
    pub(crate) fn issue_normed_product(
        &mut self,
        x: &Tensor,
        residual: &mut Tensor,
        norm: &Norm,
        w: &Linear,
        activation: Option<Activation>,
    ) -> Option<Tensor> {
        assert_eq!((x.rows(), x.cols()), (residual.rows(), residual.cols()), "residual shapes");
        assert_eq!((x.cols(), norm.cols), (w.inputs, w.inputs), "inputs of a product");
        let dtype = self.options.dtype;
        let outputs = if activation.is_some() { w.outputs / 2 } else { w.outputs };
        if !dispatch::is_one_row(x.rows(), w.inputs, dtype) {
            return self.issue_around_norm(x, residual, norm, w, activation);
        }
        let function = self.verbs.normed.as_ref()?.with(activation);
        let out = self.take(1, outputs, dtype);
        // Every block reads the residual stream, so its sum goes elsewhere.
        let sum = self.take(1, x.cols(), DType::F32);
        let Weights::Dense(weights) = &w.weights;
        let args = [
            Arg::U64(weights.address()),
            Arg::U64(x.address()),
            Arg::U64(address(w.bias.as_ref())),
            Arg::U64(out.address()),
            Arg::U32(outputs as u32),
            Arg::U32(w.inputs as u32),
            Arg::U64(residual.address()),
            Arg::U64(norm.gain.address()),
            Arg::U64(sum.address()),
            Arg::F32(norm.eps),
        ];
        let mut shape = one_row_shape(outputs, w.inputs);
        shape.grid[0] = shape.grid[0].min(NORMED_BLOCKS_PER_SM * self.device.num_sms);
        self.issue(function, shape, &args);
        *residual = sum;
        Some(out)
    }

    pub(crate) fn issue_gated(&mut self, gate_up: &Tensor, activation: Activation) -> Tensor {
        let half = gate_up.cols() / 2;
        let lanes = 16 / self.options.dtype.size();
        assert!(half.is_multiple_of(lanes), "half a gated row is {half} columns");
        let out = self.take(gate_up.rows(), half, self.options.dtype);
        let function = match activation {
            Activation::Silu => self.verbs.gated_silu,
            Activation::GeluTanh => self.verbs.gated_gelu_tanh,
        };
        let shape = Shape::new([(half / lanes).div_ceil(128), gate_up.rows(), 1], 128);
        let args = [Arg::U64(gate_up.address()), Arg::U64(out.address()), Arg::U32(half as u32)];
        self.issue(function, shape, &args);
        out
    }

    pub(crate) fn issue_rms_norm(&mut self, x: &Tensor, norm: &Norm) -> Tensor {
        assert_eq!(x.cols(), norm.cols, "columns of a norm");
        let out = self.take(x.rows(), x.cols(), self.options.dtype);
        let function = if x.dtype() == self.options.dtype {
            self.verbs.rms_norm
        } else {
            self.verbs.rms_norm_f32
        };
        let args = [
            Arg::U64(x.address()),
            Arg::U64(norm.gain.address()),
            Arg::U64(out.address()),
            Arg::U32(x.cols() as u32),
            Arg::F32(norm.eps),
        ];
        let shape = Shape::new([x.rows(), 1, 1], row_threads(x.cols()));
        self.issue(function, shape, &args);
        out
    }

    pub(crate) fn issue_add_rms_norm(
        &mut self,
        x: &Tensor,
        residual: &mut Tensor,
        norm: &Norm,
    ) -> Tensor {
        assert_eq!((x.rows(), x.cols()), (residual.rows(), residual.cols()), "residual shapes");
        assert_eq!((x.cols(), residual.dtype()), (norm.cols, DType::F32), "columns of a norm");
        let out = self.take(x.rows(), x.cols(), self.options.dtype);
        let args = [
            Arg::U64(x.address()),
            Arg::U64(residual.address()),
            Arg::U64(norm.gain.address()),
            Arg::U64(out.address()),
            Arg::U32(x.cols() as u32),
            Arg::F32(norm.eps),
        ];
        let shape = Shape::new([x.rows(), 1, 1], row_threads(x.cols()));
        self.issue(self.verbs.add_rms_norm, shape, &args);
        out
    }

    pub(crate) fn issue_select(&mut self, x: &Tensor, step: &Step) -> Tensor {
        let rows = self.rows(step.num_logit_rows, step);
        let out = self.take(rows, x.cols(), x.dtype());
        let words = x.cols() * x.dtype().size() / 16;
        assert_eq!(words * 16, x.cols() * x.dtype().size(), "rows of whole vectors");
        let args = [
            Arg::U64(x.address()),
            Arg::U64(self.work().area.logit_rows),
            Arg::U64(out.address()),
            Arg::U32(words as u32),
        ];
        let threads = words.next_multiple_of(32).clamp(32, 256);
        self.issue(self.verbs.select_rows, Shape::new([rows, 1, 1], threads), &args);
        out
    }
}
