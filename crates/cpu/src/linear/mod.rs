//! Products with packed weights: `x · wᵀ + bias`.
//!
//! A task is a run of panels times a block of rows. It streams its weights once for all its
//! rows, so one row is bound by memory and many by arithmetic.

pub mod packed;

use pagedllm_backend::{DeviceError, dequantize};
use pagedllm_core::{LinearPart, WeightFormat};

use crate::simd::{Bf16Rows, CHUNK, FloatRows, Int8Rows, Kernels, ROW_SLACK};
use crate::threads::{Chunks, Parts, ThreadPool, Tiles};
use crate::workspace::{Buffer, ScratchSizes};
use packed::{BLOCK, PANEL, Packed, is_dense};

/// Tasks that a thread gets at least, where there are enough panels, so that stealing evens out
/// what other processes take.
const TASKS_PER_THREAD: usize = 8;
/// Most panels in a task.
const MAX_TASK_PANELS: usize = 16;
/// Rows in a task: their activations stay in the second-level cache.
const MAX_TASK_ROWS: usize = 256;

/// How exact products are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuDType {
    /// f32 activations and exact weights.
    Float32,
    /// Whatever the instruction set multiplies fastest: 8-bit activations for block formats, bf16
    /// where it has tiles of them and the rows are many, for dense formats bf16 at least.
    Fast,
}

/// Packed matrices one below the other.
pub struct Linear {
    segments: Vec<Segment>,
    cols: usize,
    bias: Option<Vec<f32>>,
    /// Outputs at which tasks begin, then all.
    col_starts: Vec<usize>,
    dtype: CpuDType,
}

struct Segment {
    first_output: usize,
    packed: Packed,
}

/// The form in which a product takes its activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Float,
    Bf16,
    Int8,
}

impl Linear {
    /// Packs `parts`.
    ///
    /// # Errors
    /// Out of memory, or parts that don't fit each other.
    pub fn load(
        parts: &[LinearPart<'_>],
        dtype: CpuDType,
        pool: &mut ThreadPool,
    ) -> Result<Self, DeviceError> {
        let unsupported = |message: String| Err(DeviceError::Unsupported(message));
        let Some(first) = parts.first() else {
            return unsupported("a linear layer of no parts".into());
        };
        let cols = first.weight.cols;
        let rows: usize = parts.iter().map(|part| part.weight.rows).sum();
        let mut linear =
            Self { segments: Vec::new(), cols, bias: None, col_starts: vec![0], dtype };
        let panels_per_task =
            (rows / PANEL / (pool.num_threads() * TASKS_PER_THREAD)).clamp(1, MAX_TASK_PANELS);
        let mut first_output = 0;
        for part in parts {
            let weight = &part.weight;
            if weight.cols != cols {
                return unsupported(format!(
                    "{}: {} inputs beside {cols}",
                    weight.name, weight.cols
                ));
            }
            let packed = Packed::pack(weight, pool)?;
            let starts = (0..weight.rows).step_by(panels_per_task * PANEL).skip(1);
            linear.col_starts.extend(starts.map(|start| first_output + start));
            if let Some(bias) = &part.bias {
                let values = dequantize::matrix(bias);
                if values.len() != weight.rows {
                    return unsupported(format!("{}: not one for each output", bias.name));
                }
                let all = linear.bias.get_or_insert_with(|| vec![0.0; rows]);
                all[first_output..first_output + weight.rows].copy_from_slice(&values);
            }
            linear.segments.push(Segment { first_output, packed });
            first_output += weight.rows;
            linear.col_starts.push(first_output);
        }
        Ok(linear)
    }

    /// What a task of this matrix needs: a panel as f32 in parts, or as bytes or bf16 whole.
    #[must_use]
    pub fn scratch_sizes(&self) -> ScratchSizes {
        let panel = CHUNK.max(self.cols.next_multiple_of(BLOCK) / 2) * PANEL;
        ScratchSizes { panel, tile: MAX_TASK_ROWS * PANEL, ..ScratchSizes::default() }
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        *self.col_starts.last().expect("never empty")
    }
    /// Inputs.
    #[must_use]
    pub const fn cols(&self) -> usize {
        self.cols
    }
    /// Writes the weights of one output to `out`, `[cols]`.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let segment = self.segment(row);
        segment.packed.row(row - segment.first_output, out);
    }

    /// The form in which `rows` rows are multiplied by weights of `format`.
    fn form(&self, kernels: &Kernels, format: WeightFormat, rows: usize) -> Form {
        match self.dtype {
            CpuDType::Float32 => Form::Float,
            CpuDType::Fast if kernels.takes_bf16(format, rows) => Form::Bf16,
            CpuDType::Fast if is_dense(format) => Form::Float,
            CpuDType::Fast => Form::Int8,
        }
    }

    fn segment(&self, output: usize) -> &Segment {
        let after = self.segments.partition_point(|segment| segment.first_output <= output);
        &self.segments[after - 1]
    }
}

/// Activations in the forms that products take.
#[derive(Default)]
pub struct Inputs {
    rows: usize,
    cols: usize,
    ints: Buffer<i8>,
    scales: Buffer<f32>,
    sums: Buffer<f32>,
    bf16: Buffer<u16>,
    /// Copies of rows whose length is no multiple of a block.
    padded: Buffer<f32>,
    row_starts: Vec<usize>,
}

/// Rows of a loop over `rows` rows that one task takes.
#[must_use]
pub fn rows_per_task(rows: usize, threads: usize) -> usize {
    rows.div_ceil(if rows >= 8 * threads { 4 * threads } else { threads }).max(1)
}

impl Inputs {
    /// Makes room for `rows` of `cols`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn reserve(&mut self, rows: usize, cols: usize) -> Result<(), DeviceError> {
        let cols = cols.next_multiple_of(BLOCK);
        let len = (rows + ROW_SLACK) * cols;
        self.ints = Buffer::new(len, "8-bit activations")?;
        self.scales = Buffer::new(len / BLOCK, "activation scales")?;
        self.sums = Buffer::new(len / 16, "activation sums")?;
        self.bf16 = Buffer::new(len, "bf16 activations")?;
        self.padded = Buffer::new(len, "padded activations")?;
        self.row_starts.reserve(rows / MAX_TASK_ROWS + 2);
        Ok(())
    }

    /// Prepares rows for `w`. `produce(x, extra)` first fills in or changes runs of rows of `x`,
    /// `[rows, cols]`, together with the part of `extra` that goes with them; it runs in parallel,
    /// so that a norm or an activation and the rounding of its result are one pass. `extra` has
    /// one part for each run of [`rows_per_task`] rows.
    pub fn prepare<P: Parts>(
        &mut self,
        pool: &mut ThreadPool,
        kernels: &Kernels,
        (x, extra): (&mut [f32], P),
        w: &Linear,
        produce: impl Fn(&mut [f32], P::Part) + Sync,
    ) {
        let (cols, padded) = (w.cols, w.cols.next_multiple_of(BLOCK));
        let rows = x.len() / cols;
        (self.rows, self.cols) = (rows, padded);
        self.row_starts.clear();
        self.row_starts.extend((0..rows).step_by(MAX_TASK_ROWS));
        self.row_starts.push(rows);
        if rows == 0 {
            return;
        }
        self.grow((rows + ROW_SLACK) * padded);
        let run = rows_per_task(rows, pool.num_threads());
        let pads = padded != cols;
        let takes = |form| {
            w.segments.iter().any(|segment| w.form(kernels, segment.packed.format, rows) == form)
        };
        let (takes_int8, takes_bf16) = (takes(Form::Int8), takes(Form::Bf16));
        let parts = (
            (Chunks::new(x, run * cols), extra),
            Chunks::new(&mut self.padded[..rows * padded], run * padded),
            (
                Chunks::new(&mut self.ints[..rows * padded], run * padded),
                Chunks::new(&mut self.scales[..rows * padded / BLOCK], run * padded / BLOCK),
                Chunks::new(&mut self.sums[..rows * padded / 16], run * padded / 16),
                Chunks::new(&mut self.bf16[..rows * padded], run * padded),
            ),
        );
        pool.for_parts(parts, |_, ((x, extra), copies, (ints, scales, sums, bf16)), _| {
            produce(x, extra);
            if pads {
                for (x, copy) in x.chunks_exact(cols).zip(copies.chunks_exact_mut(padded)) {
                    copy[..cols].copy_from_slice(x);
                    copy[cols..].fill(0.0);
                }
            }
            if takes_bf16 {
                kernels.round_to_bf16(if pads { copies } else { x }, bf16);
            }
            if takes_int8 {
                // Block formats have whole blocks, so rows of `x` follow one another.
                kernels.quantize(x, ints, scales, sums);
            }
        });
    }

    fn grow(&mut self, len: usize) {
        self.ints.grow(len);
        self.scales.grow(len / BLOCK);
        self.sums.grow(len / 16);
        self.bf16.grow(len);
        self.padded.grow(len);
    }

    /// The product of what was prepared, into `out`, `[rows, outputs]`. `x` is what `prepare`
    /// left.
    pub fn multiply(
        &self,
        pool: &mut ThreadPool,
        kernels: &Kernels,
        x: &[f32],
        w: &Linear,
        out: &mut [f32],
    ) {
        if self.rows == 0 {
            return;
        }
        let float = if self.cols == w.cols { x } else { &self.padded };
        let float = FloatRows { data: float, stride: self.cols };
        let int8 =
            Int8Rows { ints: &self.ints, scales: &self.scales, sums: &self.sums, cols: self.cols };
        let bf16 = Bf16Rows { data: &self.bf16, stride: self.cols };
        let tiles =
            Tiles::new(&mut out[..self.rows * w.rows()], w.rows(), &self.row_starts, &w.col_starts);
        pool.for_parts(tiles, |_, mut tile, scratch| {
            let segment = w.segment(tile.first_col);
            let (rows, cols, first_row) = (tile.rows, tile.cols, tile.first_row);
            for col in (0..cols).step_by(PANEL) {
                let output = tile.first_col + col;
                let panel = segment.packed.panel((output - segment.first_output) / PANEL);
                let window = tile.window(0, rows, col, PANEL.min(cols - col));
                let scratch = [&mut scratch.panel, &mut scratch.tile];
                match w.form(kernels, panel.format, self.rows) {
                    Form::Int8 => {
                        kernels.rows_int8(&panel, int8.from(first_row), window, scratch);
                    }
                    Form::Bf16 => {
                        kernels.rows_bf16(&panel, bf16.from(first_row), window, scratch);
                    }
                    Form::Float => {
                        let data = &float.data[first_row * float.stride..];
                        kernels.rows_float(&panel, FloatRows { data, ..float }, window, scratch);
                    }
                }
            }
            if let Some(bias) = &w.bias {
                let bias = &bias[tile.first_col..tile.first_col + cols];
                for row in 0..rows {
                    kernels.add(bias, tile.row(row));
                }
            }
        });
    }
}

#[cfg(test)]
#[allow(clippy::print_stdout)] // A path that the processor lacks must say so.
mod tests {
    use super::*;
    use crate::simd::Isa;
    use crate::testing::{Random, random_weight};
    use crate::threads::Indices;

    /// Norm of the difference over the norm.
    fn relative_error(got: &[f32], want: &[f64]) -> f64 {
        let difference: f64 = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum();
        let norm: f64 = want.iter().map(|w| w * w).sum();
        (difference / norm.max(1e-30)).sqrt()
    }

    fn prepare(
        inputs: &mut Inputs,
        pool: &mut ThreadPool,
        kernels: &Kernels,
        x: &mut [f32],
        w: &Linear,
    ) {
        let rows = x.len() / w.cols();
        let runs = rows.div_ceil(rows_per_task(rows, pool.num_threads()));
        inputs.prepare(pool, kernels, (x, Indices(runs)), w, |_, ()| {});
    }

    fn check(isa: Isa, dtype: CpuDType, format: WeightFormat, seed: u64) {
        let Some(kernels) = Kernels::new(isa) else {
            println!("skipped: {isa}");
            return;
        };
        let mut random = Random::new(seed);
        let mut pool = ThreadPool::new(2).unwrap();
        let cols = match format.block_len() {
            1 => 1 + random.below(600),
            len => len * (1 + random.below(640 / len)),
        };
        let most = if random.below(2) == 0 { 7 } else { 60 };
        let rows = 1 + random.below(most);
        let outputs = [1 + random.below(70), 16 * (1 + random.below(3))];
        let parts: Vec<_> = outputs
            .iter()
            .map(|&outputs| LinearPart {
                weight: random_weight(&mut random, format, outputs, cols),
                bias: (outputs % 2 == 0)
                    .then(|| random_weight(&mut random, WeightFormat::F32, 1, outputs)),
            })
            .collect();
        let linear = Linear::load(&parts, dtype, &mut pool).unwrap();
        let mut x = random.floats(rows * cols);
        let mut out = vec![f32::NAN; rows * linear.rows()];
        let mut inputs = Inputs::default();
        prepare(&mut inputs, &mut pool, &kernels, &mut x, &linear);
        inputs.multiply(&mut pool, &kernels, &x, &linear, &mut out);

        let mut want = Vec::new();
        for x in x.chunks_exact(cols) {
            for part in &parts {
                let bias = part.bias.as_ref().map(dequantize::matrix);
                for (output, weights) in
                    dequantize::matrix(&part.weight).chunks_exact(cols).enumerate()
                {
                    let dot: f64 =
                        x.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    want.push(dot + bias.as_ref().map_or(0.0, |bias| f64::from(bias[output])));
                }
            }
        }
        let tolerance = match (dtype, is_dense(format)) {
            (CpuDType::Float32, _) => 2e-6,
            // Both sides of a bf16 product are rounded to 8 bits.
            (CpuDType::Fast, true) if isa >= Isa::Avx512Bf16 => 4e-3,
            (CpuDType::Fast, true) => 1.5e-3,
            (CpuDType::Fast, false) => 1e-2,
        };
        let error = relative_error(&out, &want);
        assert!(
            error < tolerance,
            "{isa} {dtype:?} {format} seed {seed}: {rows} rows of {cols}, {outputs:?}: {error}"
        );
    }

    #[test]
    fn products_match_the_dense_ones() {
        for isa in Isa::ALL {
            for dtype in [CpuDType::Float32, CpuDType::Fast] {
                for format in WeightFormat::ALL {
                    for seed in 0..12 {
                        check(isa, dtype, format, seed);
                    }
                }
            }
        }
    }

    #[test]
    fn a_nan_stays_in_its_row() {
        for isa in Isa::ALL {
            let Some(kernels) = Kernels::new(isa) else {
                println!("skipped: {isa}");
                continue;
            };
            for format in WeightFormat::ALL {
                let mut pool = ThreadPool::new(1).unwrap();
                let weight = random_weight(&mut Random::new(3), format, 32, 256);
                let part = LinearPart { weight, bias: None };
                let linear = Linear::load(&[part], CpuDType::Fast, &mut pool).unwrap();
                let mut x = Random::new(4).floats(9 * 256);
                x[3 * 256 + 7] = f32::NAN;
                x[4 * 256 + 200] = f32::INFINITY;
                let mut out = vec![0.0; 9 * 32];
                let mut inputs = Inputs::default();
                prepare(&mut inputs, &mut pool, &kernels, &mut x, &linear);
                inputs.multiply(&mut pool, &kernels, &x, &linear, &mut out);
                for (row, out) in out.chunks_exact(32).enumerate() {
                    let sound = out.iter().all(|value| value.is_finite());
                    let unsound = out.iter().all(|value| !value.is_finite());
                    let wanted = if row == 3 || row == 4 { unsound } else { sound };
                    assert!(wanted, "{isa} {format} row {row}");
                }
            }
        }
    }
}
