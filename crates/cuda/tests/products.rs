//! Products of few rows, which some devices have kernels for: at real sizes and odd ones, on whole
//! numbers, whose sums are exact in any order, so that results must be equal and not only close.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use half::{bf16, f16};
use pagedllm_backend::conformance::{Probe, Random, relative_error};
use pagedllm_backend::{Activation, Backend, WorkspaceSpec};
use pagedllm_core::{
    DType, GroupTables, KvGroup, KvLayout, LinearPart, RaggedBatch, Split, StepInput, TokenSource,
    WeightFormat, WeightView,
};
use pagedllm_cuda::{
    CudaBackend, CudaOptions, KvCache, Linear, Norm, Step, Tensor, Vocab, available,
};

const SEED: u64 = 30;
const BLOCK: usize = 16;
const MAX_SEQS: usize = 40;
const MAX_ROWS: usize = 33;
const WIDEST: usize = 14336;
/// Around the sizes that the kernels are made for, and one beyond them.
const ROWS: [usize; 7] = [2, 3, 16, 17, 31, 32, MAX_ROWS];
const VOCAB: usize = 64;
/// Weights are whole numbers of this, biases of the other.
const UNIT: f32 = 1.0 / 4096.0;
const BIAS_UNIT: f32 = 1.0 / 32.0;
const UNITS_OF_BIAS: i32 = 128;

struct Bench {
    b: CudaBackend,
    kv: KvCache,
    dtype: DType,
    /// Whether the kernels are there, which add in f32 and round once.
    is_exact: bool,
}

impl Bench {
    /// Steps of up to `recorded` sequences are recorded, at each of these sizes.
    fn new(dtype: DType, recorded: &[usize]) -> Self {
        let options = CudaOptions {
            dtype,
            kv_dtype: dtype,
            enforce_eager: recorded.is_empty(),
            graph_batch_sizes: recorded.to_vec(),
            ..CudaOptions::default()
        };
        let mut b = CudaBackend::new(options).expect("the device opens");
        b.reserve_workspace(&WorkspaceSpec {
            max_num_batched_tokens: MAX_ROWS,
            max_num_seqs: MAX_SEQS,
            max_logit_rows: MAX_SEQS,
            max_model_len: BLOCK,
            block_size: BLOCK,
            vocab_size: VOCAB,
            hidden_size: WIDEST,
            max_cols: 2 * WIDEST,
        })
        .expect("a small workspace");
        let layout = KvLayout { block_size: BLOCK, num_kv_heads: 1, head_dim: 64, dtype };
        let group = KvGroup { layers: vec![0], layout, window: None };
        let kv = b.allocate_kv_cache(&[group], MAX_SEQS).expect("a small cache");
        let is_exact = b.describe().ends_with("kernels sm_90a)");
        Self { b, kv, dtype, is_exact }
    }

    /// A step of one token in each of `seqs` sequences.
    fn step(&mut self, seqs: usize) -> Step {
        let each = || 0..seqs as u32;
        let group = GroupTables {
            slot_mapping: each().map(|sequence| sequence * BLOCK as u32).collect(),
            block_tables: each().collect(),
            max_blocks: 1,
        };
        let batch = RaggedBatch {
            token_ids: each().map(TokenSource::Known).collect(),
            positions: vec![0; seqs],
            query_starts: (0..=seqs as u32).collect(),
            seq_lens: vec![1; seqs],
            groups: vec![group],
            ..RaggedBatch::default()
        };
        self.b.begin_step(&mut self.kv, &StepInput { batch, ..StepInput::default() })
    }

    fn load(&mut self, matrix: &Whole, bias: Option<&[i16]>) -> Linear {
        let bias = bias.map(|bias| {
            let values = bias.iter().flat_map(|&b| (f32::from(b) * BIAS_UNIT).to_le_bytes());
            view("bias", WeightFormat::F32, 1, bias.len(), values.collect())
        });
        let values = matrix.values.iter();
        let data = values.flat_map(|&w| bf16::from_f32(f32::from(w) * UNIT).to_le_bytes());
        let weight = view("w", WeightFormat::BF16, matrix.rows, matrix.cols, data.collect());
        self.b.load_linear(&[LinearPart { weight, bias }], Split::Whole).expect("weights load")
    }

    fn rounded(&self, value: f32) -> f32 {
        match self.dtype {
            DType::F16 => f16::from_f32(value).to_f32(),
            _ => bf16::from_f32(value).to_f32(),
        }
    }

    /// The library may round sums of parts before it adds them.
    fn tolerance(&self, rows: usize) -> f32 {
        match self.dtype {
            _ if self.is_exact && rows < MAX_ROWS => 0.0,
            DType::F16 => 1e-3,
            _ => 6e-3,
        }
    }
}

fn view(
    name: &str,
    format: WeightFormat,
    rows: usize,
    cols: usize,
    data: Vec<u8>,
) -> WeightView<'static> {
    WeightView { name: name.into(), format, rows, cols, data: data.into() }
}

/// A matrix of whole numbers.
struct Whole {
    rows: usize,
    cols: usize,
    values: Vec<i16>,
}

impl Whole {
    /// Numbers from `-limit` to `limit`.
    fn random(random: &mut Random, rows: usize, cols: usize, limit: usize) -> Self {
        Self { rows, cols, values: numbers(random, rows * cols, limit) }
    }
    fn row(&self, row: usize) -> &[i16] {
        &self.values[row * self.cols..][..self.cols]
    }
    /// `self . w^T` and bias in units.
    fn times(&self, w: &Self, bias: Option<&[i16]>) -> Vec<i32> {
        let dot = |row: usize, col: usize| -> i32 {
            let pairs = self.row(row).iter().zip(w.row(col));
            pairs.map(|(&a, &b)| i32::from(a) * i32::from(b)).sum()
        };
        let bias = |col: usize| bias.map_or(0, |bias| i32::from(bias[col]) * UNITS_OF_BIAS);
        let places = (0..self.rows).flat_map(|row| (0..w.rows).map(move |col| (row, col)));
        places.map(|(row, col)| dot(row, col) + bias(col)).collect()
    }
    fn floats(&self) -> Vec<f32> {
        self.values.iter().map(|&value| f32::from(value)).collect()
    }
}

fn numbers(random: &mut Random, len: usize, limit: usize) -> Vec<i16> {
    (0..len).map(|_| random.below(2 * limit + 1) as i16 - limit as i16).collect()
}

#[test]
fn few_rows_times_whole_numbers_are_exact() {
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    let mut benches = [DType::BF16, DType::F16].map(|dtype| Bench::new(dtype, &[]));
    let mut random = Random::new(SEED);
    // Columns shared by 2, 4, 4, 2, 1 and 2 blocks.
    for (outputs, inputs) in
        [(6184, 1032), (4096, 4096), (2048, 8192), (4096, 14336), (24, 72), (136, 712)]
    {
        let x = Whole::random(&mut random, MAX_ROWS, inputs, 15);
        let w = Whole::random(&mut random, outputs, inputs, 31);
        let bias = numbers(&mut random, outputs, 64);
        let values = x.floats();
        for bias in [None, Some(bias.as_slice())] {
            let sums = x.times(&w, bias);
            for bench in &mut benches {
                let linear = bench.load(&w, bias);
                let step = bench.step(1);
                for rows in ROWS {
                    let x = bench.b.upload(rows, inputs, &values[..rows * inputs]);
                    let y = bench.b.linear(&x, &linear, &step);
                    let got = bench.b.download(&y);
                    let want: Vec<f32> = sums[..rows * outputs]
                        .iter()
                        .map(|&sum| bench.rounded(sum as f32 * UNIT))
                        .collect();
                    let error = relative_error(&got, &want);
                    assert!(
                        error <= bench.tolerance(rows),
                        "{} [{rows}, {inputs}] -> {outputs}, bias {}: {error:e}, seed {SEED}",
                        bench.dtype,
                        bias.is_some()
                    );
                }
            }
        }
    }
}

fn activate(x: f32, activation: Activation) -> f32 {
    let x = f64::from(x);
    let y = match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    };
    y as f32
}

/// The rows before the norm are ones of either sign and so their own norm; the product behind the
/// gate is by the identity. So the result is that of the gate, whose halves are rounded before it.
#[test]
fn gates_behind_few_rows_take_rounded_halves() {
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    let mut benches = [DType::BF16, DType::F16].map(|dtype| Bench::new(dtype, &[]));
    let mut random = Random::new(SEED + 1);
    // Columns shared by 4, 2 and 1 blocks; the last tile is a part of one.
    for (half, inputs, has_bias) in [(1096, 1032, true), (3080, 1032, false), (6184, 2048, true)] {
        let gain = Whole {
            rows: 1,
            cols: inputs,
            values: (0..inputs).map(|_| 1 + random.below(15) as i16).collect(),
        };
        let signs: Vec<i16> =
            (0..MAX_ROWS * inputs).map(|_| random.below(2) as i16 * 2 - 1).collect();
        let normed = Whole {
            rows: MAX_ROWS,
            cols: inputs,
            values: signs.iter().zip(gain.values.iter().cycle()).map(|(s, g)| s * g).collect(),
        };
        let signs: Vec<f32> = signs.iter().map(|&sign| f32::from(sign)).collect();
        let w = Whole::random(&mut random, 2 * half, inputs, 31);
        let bias = numbers(&mut random, 2 * half, 32);
        let bias = has_bias.then_some(bias.as_slice());
        let sums = normed.times(&w, bias);
        let mut identity = Whole { rows: half, cols: half, values: vec![0; half * half] };
        identity.values.iter_mut().step_by(half + 1).for_each(|one| *one = (1.0 / UNIT) as i16);
        let bytes = gain.floats().iter().flat_map(|gain| gain.to_le_bytes()).collect();
        let gain = view("gain", WeightFormat::F32, 1, inputs, bytes);
        for bench in &mut benches {
            let norm = bench.b.load_norm(&gain, 1e-6).expect("a norm loads");
            let gate_up = bench.load(&w, bias);
            let down = bench.load(&identity, None);
            let step = bench.step(1);
            for (rows, activation) in ROWS
                .into_iter()
                .flat_map(|rows| [(rows, Activation::Silu), (rows, Activation::GeluTanh)])
            {
                let x = bench.b.upload(rows, inputs, &signs[..rows * inputs]);
                let zeros = vec![0.0; rows * inputs];
                let mut residual = bench.b.upload_residual(rows, inputs, &zeros);
                let y =
                    bench.b.gated_mlp(x, &mut residual, &norm, &gate_up, activation, &down, &step);
                let got = bench.b.download(&y);
                let side = |row: usize, col: usize| {
                    bench.rounded(sums[row * 2 * half + col] as f32 * UNIT)
                };
                let want: Vec<f32> = (0..rows)
                    .flat_map(|row| (0..half).map(move |col| (row, col)))
                    .map(|(row, col)| {
                        let gate = activate(side(row, col), activation);
                        bench.rounded(gate * side(row, half + col))
                    })
                    .collect();
                let case = format!(
                    "{} {activation:?} [{rows}, {inputs}] -> {half}, bias {has_bias}, seed {SEED}",
                    bench.dtype
                );
                let error = relative_error(&got, &want);
                let limit = bench.tolerance(MAX_ROWS);
                assert!(error <= limit, "{case}: {error:e} is over {limit:e}");
                // The last bits of the activation decide few roundings. Unrounded halves decide many.
                let apart = got.iter().zip(&want).filter(|(g, w)| (**g - **w).abs() > 3e-5).count();
                assert!(
                    !bench.is_exact || rows == MAX_ROWS || apart * 50 < want.len(),
                    "{case}: {apart} of {} apart",
                    want.len()
                );
            }
        }
    }
}

/// Weights are read before the kernels before are done, and x must not be; so products that follow
/// each other at once, issued or recorded, give what they give one at a time, to the bit.
#[test]
fn products_in_a_row_wait_for_each_other() {
    const WIDTH: usize = 2048;
    const PRODUCTS: usize = 12;
    const SEQS: usize = 31;
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    let run = |recorded: &[usize], one_at_a_time: bool| -> Vec<Vec<f32>> {
        let mut bench = Bench::new(DType::BF16, recorded);
        let mut random = Random::new(SEED + 2);
        let table = random.weight(WeightFormat::BF16, VOCAB, WIDTH);
        let vocab = bench.b.load_vocab(&table).expect("a table loads");
        let mut linear = |outputs, inputs| {
            let weight = random.weight(WeightFormat::BF16, outputs, inputs);
            let parts = [LinearPart { weight, bias: None }];
            bench.b.load_linear(&parts, Split::Whole).expect("weights load")
        };
        // Columns shared by 4 and by 2 blocks.
        let layers = [linear(3 * WIDTH, WIDTH), linear(WIDTH, 3 * WIDTH)];
        let replay = |_| {
            let step = bench.step(SEQS);
            let y = bench.b.run(&step, |b| {
                let mut x = b.embed(&vocab, &step);
                for layer in layers.iter().cycle().take(PRODUCTS) {
                    x = b.linear(&x, layer, &step);
                    if one_at_a_time {
                        b.download(&x);
                    }
                }
                x
            });
            let mut values = bench.b.download(&y);
            values.truncate(SEQS * WIDTH);
            values
        };
        (0..4).map(replay).collect()
    };
    let want = run(&[], true);
    assert!(want[0].iter().any(|&value| value != 0.0));
    for recorded in [&[][..], &[32]] {
        let got = run(recorded, false);
        for (round, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(got == want, "recorded {recorded:?}, round {round}, seed {SEED}");
        }
    }
}

/// A layer without attention, and what comes before and after it.
struct Layer {
    vocab: Vocab,
    norms: [Norm; 3],
    first: Linear,
    out: Linear,
    gate_up: Linear,
    activation: Activation,
    down: Linear,
    last: Linear,
}

struct LayerShape {
    hidden: usize,
    inner: usize,
    wide: usize,
    has_bias: bool,
    activation: Activation,
}

/// Rows of very different sizes beside each other.
const ROW_SCALES: [f32; 4] = [0.02, 1.0, 0.3, 4.0];
/// Large beside the squares of the small rows.
const EPS: [f32; 3] = [0.05, 0.05, 0.02];

fn random_vocab(bench: &mut Bench, random: &mut Random, cols: usize) -> Vocab {
    let rows = ROW_SCALES.iter().cycle().take(VOCAB);
    let values = rows.flat_map(|scale| random.units(cols).into_iter().map(move |x| x * scale));
    let bytes = values.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect();
    let table = view("table", WeightFormat::BF16, VOCAB, cols, bytes);
    bench.b.load_vocab(&table).expect("a table loads")
}

fn random_norm(bench: &mut Bench, random: &mut Random, cols: usize, eps: f32) -> Norm {
    let gain = (0..cols).flat_map(|_| (1.0 + random.unit() / 2.0).to_le_bytes()).collect();
    let gain = view("gain", WeightFormat::F32, 1, cols, gain);
    bench.b.load_norm(&gain, eps).expect("a norm loads")
}

fn random_linear(
    bench: &mut Bench,
    random: &mut Random,
    (outputs, inputs): (usize, usize),
    has_bias: bool,
) -> Linear {
    let weight = random.weight(WeightFormat::BF16, outputs, inputs);
    let bias = numbers(random, outputs, 8).into_iter();
    let bias = bias.flat_map(|bias| (f32::from(bias) * BIAS_UNIT).to_le_bytes()).collect();
    let bias = has_bias.then(|| view("bias", WeightFormat::F32, 1, outputs, bias));
    bench.b.load_linear(&[LinearPart { weight, bias }], Split::Whole).expect("weights load")
}

impl Layer {
    fn new(bench: &mut Bench, random: &mut Random, shape: &LayerShape) -> Self {
        let &LayerShape { hidden, inner, wide, has_bias, activation } = shape;
        let mut linear =
            |outputs, inputs| random_linear(bench, random, (outputs, inputs), has_bias);
        let first = linear(wide, hidden);
        let out = linear(hidden, wide);
        let gate_up = linear(2 * inner, hidden);
        let down = linear(hidden, inner);
        let last = linear(wide, hidden);
        let vocab = random_vocab(bench, random, hidden);
        let norms = EPS.map(|eps| random_norm(bench, random, hidden, eps));
        Self { vocab, norms, first, out, gate_up, activation, down, last }
    }

    /// The result, and the residual stream behind it.
    fn forward(&self, b: &mut CudaBackend, step: &Step) -> (Tensor, Tensor) {
        let x = b.embed(&self.vocab, step);
        let mut residual = b.zeros(&x, step);
        let x = b.norm_linear(x, &mut residual, &self.norms[0], &self.first, step);
        let sum = b.linear(&x, &self.out, step);
        drop(x);
        let sum = b.gated_mlp(
            sum,
            &mut residual,
            &self.norms[1],
            &self.gate_up,
            self.activation,
            &self.down,
            step,
        );
        let y = b.norm_linear(sum, &mut residual, &self.norms[2], &self.last, step);
        (y, residual)
    }

    /// What [`forward`](Self::forward) computes, verb by verb.
    fn verbs(&self, b: &mut CudaBackend, step: &Step) -> Wanted {
        let x = b.embed(&self.vocab, step);
        let mut residual = b.zeros(&x, step);
        let x = b.add_rms_norm(x, &mut residual, &self.norms[0], step);
        let x = b.linear(&x, &self.first, step);
        let sum = b.linear(&x, &self.out, step);
        let x = b.add_rms_norm(sum, &mut residual, &self.norms[1], step);
        let before = b.download(&residual);
        let gate_up = b.linear(&x, &self.gate_up, step);
        let inner = b.gated(gate_up, self.activation, step);
        let sum = b.linear(&inner, &self.down, step);
        let added = b.download(&sum);
        let x = b.add_rms_norm(sum, &mut residual, &self.norms[2], step);
        let y = b.linear(&x, &self.last, step);
        Wanted { before, added, y: b.download(&y) }
    }
}

/// The residual stream before the last product that it takes, that product, and the result.
struct Wanted {
    before: Vec<f32>,
    added: Vec<f32>,
    y: Vec<f32>,
}

/// Asserts that each row is close, and as long as it should be: roundings hardly make a row longer, and
/// a wrong factor does.
fn close_rows(case: &str, got: &[f32], want: &[f32], rows: usize) {
    /// Roundings leave less than 0.2 %. A tile of squares that is missed makes 1 % at least.
    const LONGER: f64 = 4e-3;
    let cols = want.len() / rows;
    assert_eq!(got.len(), want.len(), "{case}: shapes");
    for (row, (got, want)) in got.chunks(cols).zip(want.chunks(cols)).enumerate() {
        let dot = |a: &[f32]| -> f64 {
            a.iter().zip(want).map(|(&a, &want)| f64::from(a) * f64::from(want)).sum()
        };
        let error = relative_error(got, want);
        assert!(error <= 1e-2, "{case}, row {row}: {error:e}");
        let longer = (dot(got) / dot(want) - 1.0).abs();
        assert!(longer <= LONGER, "{case}, row {row}: longer by {longer:e}");
    }
}

/// Recorded steps leave norms to the products around them; issued verbs norm on their own.
#[test]
fn products_do_the_norm_between_them() {
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    // Every number of rows is recorded once for a device.
    let (silu, gelu) = (Activation::Silu, Activation::GeluTanh);
    let shape = |hidden, inner, wide, has_bias, activation| LayerShape {
        hidden,
        inner,
        wide,
        has_bias,
        activation,
    };
    let cases = [
        (shape(1048, 1096, 1544, true, silu), [2, 17, 25, 32]),
        (shape(136, 264, 1032, true, gelu), [3, 16, 29, 31]),
        (shape(2048, 6184, 3072, false, gelu), [5, 18, 27, 30]),
        (shape(4096, 1024, 6144, true, silu), [4, 24, 28, 33]),
    ];
    let recorded: Vec<usize> = cases.iter().flat_map(|(_, rows)| *rows).collect();
    let mut bench = Bench::new(DType::BF16, &recorded);
    let mut random = Random::new(SEED + 3);
    for (shape, sizes) in &cases {
        let layer = Layer::new(&mut bench, &mut random, shape);
        for &rows in sizes {
            let case = format!("{rows} rows of {}, seed {SEED}", shape.hidden);
            let step = bench.step(rows);
            let Wanted { before, added, y: want } = layer.verbs(&mut bench.b, &step);
            // Kept, so that it lies where the recorded step writes it.
            let mut residual = None;
            let mut first: Option<(Vec<f32>, Vec<f32>)> = None;
            for round in 0..4 {
                let step = bench.step(rows);
                let y = bench.b.run(&step, |b| {
                    residual = None;
                    let (y, sum) = layer.forward(b, &step);
                    residual = Some(sum);
                    y
                });
                let sum = residual.as_ref().expect("the first round is recorded");
                let got = (bench.b.download(&y), bench.b.download(sum));
                if let Some(first) = &first {
                    assert!(got == *first, "{case}: round {round} is not the first");
                    continue;
                }
                let grown: Vec<f32> = got.1.iter().zip(&before).map(|(a, b)| a - b).collect();
                close_rows(&format!("residual, {case}"), &grown, &added, rows);
                close_rows(&format!("result, {case}"), &got.0, &want, rows);
                first = Some(got);
            }
        }
    }
}

/// What waits for a norm that does not come, or that takes something else, is what it was.
#[test]
fn products_that_wait_come_before_all_else() {
    const WIDTH: usize = 1032;
    const SIZES: [usize; 3] = [7, 20, 32];
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    let mut bench = Bench::new(DType::BF16, &SIZES);
    let mut random = Random::new(SEED + 4);
    let vocab = random_vocab(&mut bench, &mut random, WIDTH);
    let norm = random_norm(&mut bench, &mut random, WIDTH, EPS[0]);
    let [a, b, c] = [true, false, true]
        .map(|bias| random_linear(&mut bench, &mut random, (WIDTH, WIDTH), bias));
    let forward = |backend: &mut CudaBackend, step: &Step| {
        let x = backend.embed(&vocab, step);
        let mut residual = backend.zeros(&x, step);
        let first = backend.linear(&x, &a, step);
        drop(x);
        let second = backend.linear(&first, &b, step);
        // The second product waits, and the norm takes the first.
        let third = backend.norm_linear(first, &mut residual, &norm, &c, step);
        let third = backend.add_rms_norm(third, &mut residual, &norm, step);
        let fourth = backend.linear(&third, &a, step);
        drop(third);
        let zeros = backend.zeros(&fourth, step);
        drop(zeros);
        drop(backend.add_rms_norm(fourth, &mut residual, &norm, step));
        let last = backend.add_rms_norm(second, &mut residual, &norm, step);
        // Still waits at the end.
        backend.linear(&last, &c, step)
    };
    for rows in SIZES {
        let step = bench.step(rows);
        let y = forward(&mut bench.b, &step);
        let want = bench.b.download(&y);
        drop(y);
        assert!(want.iter().any(|&value| value != 0.0));
        for round in 0..3 {
            let step = bench.step(rows);
            let y = bench.b.run(&step, |b| forward(b, &step));
            assert!(bench.b.download(&y) == want, "{rows} rows, round {round}, seed {SEED}");
        }
    }
}
