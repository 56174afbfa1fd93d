//! Products, norms, activations, embeddings, and the fusions of them.

use pagedllm_core::{DType, KvGroup, KvLayout, LinearPart, Split, StepInput, WeightFormat};

use super::random::World;
use super::{Claims, Probe, Random, close};
use crate::attention::Activation;
use crate::backend::{Backend, WorkspaceSpec};
use crate::dummy::DummyMatrix;
use crate::reference::{Matrix, Reference};

/// Rows around every tile size that a kernel may have.
const ROWS: [usize; 9] = [1, 2, 3, 7, 8, 16, 17, 33, 130];
const HIDDEN: usize = 256;
const WIDE: usize = 768;
/// Wider than what a block keeps in registers.
const WIDEST: usize = 4608;
const VOCAB: usize = 300;
const MAX_TOKENS: usize = 160;

fn is_dense(format: WeightFormat) -> bool {
    format.block_len() == 1
}

fn tolerance(claims: &Claims, format: WeightFormat) -> f32 {
    if is_dense(format) { claims.dense } else { claims.quantized }
}

/// A backend with a workspace and a cache that no case here reads, and a step of some tokens. Cases
/// share it: opening a device takes longer than they do.
pub struct Bench<B: Backend> {
    b: B,
    kv: B::KvCache,
    input: StepInput,
    /// The reference, given the same step.
    reference: Reference,
    reference_kv: <Reference as Backend>::KvCache,
}

/// One sequence, and the blocks that it needs.
fn world() -> (World, usize) {
    World::new(&mut Random::new(1), &[MAX_TOKENS], 16)
}

impl<B: Probe> Bench<B> {
    pub fn new(make: &impl Fn() -> B, claims: &Claims) -> Self {
        let spec = WorkspaceSpec {
            max_num_batched_tokens: MAX_TOKENS,
            max_num_seqs: 8,
            max_logit_rows: MAX_TOKENS,
            max_model_len: MAX_TOKENS,
            block_size: 16,
            vocab_size: VOCAB,
            hidden_size: WIDEST,
            max_cols: 2 * WIDE,
        };
        let group = |dtype: DType| KvGroup {
            layers: vec![0],
            layout: KvLayout { block_size: 16, num_kv_heads: 1, head_dim: 64, dtype },
            window: None,
        };
        let (_, num_blocks) = world();
        let mut b = make();
        b.reserve_workspace(&spec).expect("a small workspace");
        let kv = b.allocate_kv_cache(&[group(claims.kv_dtype)], num_blocks).expect("a small cache");
        let mut reference = Reference::default();
        reference.reserve_workspace(&spec).expect("memory");
        let reference_kv =
            reference.allocate_kv_cache(&[group(DType::F32)], num_blocks).expect("memory");
        Self { b, kv, input: StepInput::default(), reference, reference_kv }
    }
    /// From here on a step has `rows` tokens, of which every other one asks for logits.
    fn rows(&mut self, rows: usize) {
        self.input = world().0.step(&mut Random::new(1), &[(0, rows)], VOCAB);
        self.input.batch.logit_rows = (0..rows as u32).step_by(2).collect();
    }
    fn begin(&mut self) -> (B::Step, <Reference as Backend>::Step) {
        (
            self.b.begin_step(&mut self.kv, &self.input),
            self.reference.begin_step(&mut self.reference_kv, &self.input),
        )
    }
    /// The same activation on both sides, rounded as the backend rounds it.
    fn activation(&mut self, rows: usize, cols: usize, values: &[f32]) -> (B::Tensor, Matrix) {
        let tensor = self.b.upload(rows, cols, values);
        let data = self.b.download(&tensor);
        (tensor, Matrix { rows, cols, data })
    }
    fn residual(&mut self, rows: usize, cols: usize, values: &[f32]) -> (B::Tensor, Matrix) {
        let tensor = self.b.upload_residual(rows, cols, values);
        let data = self.b.download(&tensor);
        (tensor, Matrix { rows, cols, data })
    }
}

fn parts(
    random: &mut Random,
    shapes: &[(WeightFormat, usize)],
    cols: usize,
) -> Vec<LinearPart<'static>> {
    shapes
        .iter()
        .enumerate()
        .map(|(index, &(format, rows))| LinearPart {
            weight: random.weight(format, rows, cols),
            bias: (index % 2 == 1).then(|| random.weight(WeightFormat::F32, 1, rows)),
        })
        .collect()
}

/// Every format at every number of rows.
pub fn products<B: Probe>(bench: &mut Bench<B>, claims: &Claims) {
    for &format in &claims.formats {
        for rows in ROWS {
            for (outputs, cols) in [(192, HIDDEN), (33, WIDE), (80, 512)] {
                let case =
                    format!("linear {format} [{rows}, {cols}] -> {outputs}, seed {}", claims.seed);
                product(bench, claims, &case, &[(format, outputs)], rows, cols);
            }
        }
    }
}

/// A packed matrix whose parts differ in format and bias, as in a Q4_K_M file.
pub fn mixed_parts<B: Probe>(bench: &mut Bench<B>, claims: &Claims) {
    for window in claims.formats.windows(2) {
        let shapes = [(window[0], 64), (window[1], 32), (window[0], 48)];
        for rows in [1, 5, 40] {
            let case =
                format!("linear of {}, {} and {} rows {rows}", window[0], window[1], window[0]);
            product(bench, claims, &case, &shapes, rows, HIDDEN);
        }
    }
}

fn product<B: Probe>(
    bench: &mut Bench<B>,
    claims: &Claims,
    case: &str,
    shapes: &[(WeightFormat, usize)],
    rows: usize,
    cols: usize,
) {
    let mut random = Random::new(claims.seed ^ (rows * cols) as u64);
    let parts = parts(&mut random, shapes, cols);
    bench.rows(rows);
    let w = bench.b.load_linear(&parts, Split::Whole).expect(case);
    let wanted = bench.reference.load_linear(&parts, Split::Whole).expect(case);
    let (step, reference_step) = bench.begin();
    let (x, reference_x) = bench.activation(rows, cols, &random.units(rows * cols));
    let got = bench.b.linear(&x, &w, &step);
    let want = bench.reference.linear(&reference_x, &wanted, &reference_step);
    let worst = shapes.iter().map(|&(format, _)| tolerance(claims, format)).fold(0.0, f32::max);
    close(case, &bench.b.download(&got), &want.data, worst);
}

/// Each fusion against the reference and against its own parts on the same device.
pub fn fusions<B: Probe>(bench: &mut Bench<B>, claims: &Claims) {
    for &format in &claims.formats {
        for rows in [1, 6, 17, 64] {
            let mut random = Random::new(claims.seed + rows as u64);
            bench.rows(rows);
            let gain = random.weight(WeightFormat::F32, 1, HIDDEN);
            let up = parts(&mut random, &[(format, WIDE), (format, WIDE)], HIDDEN);
            let down = parts(&mut random, &[(format, 96)], WIDE);
            let load = "weights load";
            let norm = bench.b.load_norm(&gain, 1e-5).expect(load);
            let up_w = bench.b.load_linear(&up, Split::Outputs).expect(load);
            let down_w = bench.b.load_linear(&down, Split::Inputs).expect(load);
            let reference_norm = bench.reference.load_norm(&gain, 1e-5).expect(load);
            let reference_up = bench.reference.load_linear(&up, Split::Outputs).expect(load);
            let reference_down = bench.reference.load_linear(&down, Split::Inputs).expect(load);
            let (step, reference_step) = bench.begin();

            let (x, residual) = (random.units(rows * HIDDEN), random.units(rows * HIDDEN));
            let (x1, reference_x) = bench.activation(rows, HIDDEN, &x);
            let (mut r1, mut reference_r) = bench.residual(rows, HIDDEN, &residual);
            let (x2, _) = bench.activation(rows, HIDDEN, &x);
            let (mut r2, _) = bench.residual(rows, HIDDEN, &residual);

            let fused = bench.b.norm_linear(x1, &mut r1, &norm, &up_w, &step);
            let normed = bench.b.add_rms_norm(x2, &mut r2, &norm, &step);
            let apart = bench.b.linear(&normed, &up_w, &step);
            let want = bench.reference.norm_linear(
                reference_x,
                &mut reference_r,
                &reference_norm,
                &reference_up,
                &reference_step,
            );
            let limit = tolerance(claims, format) * 2.0;
            let case = format!("norm_linear {format}, {rows} rows, seed {}", claims.seed);
            let (fused_values, apart) = (bench.b.download(&fused), bench.b.download(&apart));
            close(&case, &fused_values, &want.data, limit);
            close(&format!("{case}, apart"), &fused_values, &apart, limit);
            let (r1, r2) = (bench.b.download(&r1), bench.b.download(&r2));
            close(&format!("{case}, residual"), &r1, &reference_r.data, claims.elementwise);
            close(&format!("{case}, residual apart"), &r2, &reference_r.data, claims.elementwise);

            let gate_up = Matrix { rows, cols: 2 * WIDE, data: fused_values };
            let activation = Activation::Silu;
            let got = bench.b.gated_linear(fused, activation, &down_w, &step);
            let want =
                bench.reference.gated_linear(gate_up, activation, &reference_down, &reference_step);
            let case = format!("gated_linear {format}, {rows} rows, seed {}", claims.seed);
            close(&case, &bench.b.download(&got), &want.data, limit);
        }
    }
}

/// A whole gated MLP against the reference, and against its parts on the same device.
pub fn gated_mlps<B: Probe>(bench: &mut Bench<B>, claims: &Claims) {
    for &format in &claims.formats {
        for (rows, hidden) in [(1, HIDDEN), (1, WIDEST), (5, WIDE), (12, HIDDEN), (33, HIDDEN)] {
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let case = format!(
                    "gated_mlp {format} {activation:?}, {rows} rows of {hidden}, seed {}",
                    claims.seed
                );
                gated_mlp(bench, claims, &case, format, activation, (rows, hidden));
            }
        }
    }
}

fn gated_mlp<B: Probe>(
    bench: &mut Bench<B>,
    claims: &Claims,
    case: &str,
    format: WeightFormat,
    activation: Activation,
    (rows, hidden): (usize, usize),
) {
    let mut random = Random::new(claims.seed ^ (rows * hidden) as u64);
    bench.rows(rows);
    let gain = random.weight(WeightFormat::F32, 1, hidden);
    let up = parts(&mut random, &[(format, HIDDEN), (format, HIDDEN)], hidden);
    let down = parts(&mut random, &[(format, 96)], HIDDEN);
    let norm = bench.b.load_norm(&gain, 1e-5).expect(case);
    let up_w = bench.b.load_linear(&up, Split::Outputs).expect(case);
    let down_w = bench.b.load_linear(&down, Split::Inputs).expect(case);
    let reference_norm = bench.reference.load_norm(&gain, 1e-5).expect(case);
    let reference_up = bench.reference.load_linear(&up, Split::Outputs).expect(case);
    let reference_down = bench.reference.load_linear(&down, Split::Inputs).expect(case);
    let (step, reference_step) = bench.begin();
    let (values, stream) = (random.units(rows * hidden), random.units(rows * hidden));
    let (x, reference_x) = bench.activation(rows, hidden, &values);
    let (mut residual, mut reference_residual) = bench.residual(rows, hidden, &stream);
    let (x_apart, _) = bench.activation(rows, hidden, &values);
    let (mut residual_apart, _) = bench.residual(rows, hidden, &stream);

    let got = bench.b.gated_mlp(x, &mut residual, &norm, &up_w, activation, &down_w, &step);
    let got = bench.b.download(&got);
    let want = bench.reference.gated_mlp(
        reference_x,
        &mut reference_residual,
        &reference_norm,
        &reference_up,
        activation,
        &reference_down,
        &reference_step,
    );
    let limit = tolerance(claims, format) * 2.0;
    close(case, &got, &want.data, limit);
    let sum = bench.b.download(&residual);
    close(&format!("{case}, residual"), &sum, &reference_residual.data, claims.elementwise);

    let normed = bench.b.add_rms_norm(x_apart, &mut residual_apart, &norm, &step);
    let gate_up = bench.b.linear(&normed, &up_w, &step);
    let inner = bench.b.gated(gate_up, activation, &step);
    let apart = bench.b.linear(&inner, &down_w, &step);
    close(&format!("{case}, apart"), &got, &bench.b.download(&apart), limit);
}

/// Norms, activations, row selection, zeros.
pub fn elementwise<B: Probe>(bench: &mut Bench<B>, claims: &Claims) {
    for rows in [1, 5, 64] {
        let mut random = Random::new(claims.seed + 77 + rows as u64);
        bench.rows(rows);
        let gain = random.weight(WeightFormat::F32, 1, HIDDEN);
        let norm = bench.b.load_norm(&gain, 1e-6).expect("a norm loads");
        let reference_norm = bench.reference.load_norm(&gain, 1e-6).expect("a norm loads");
        let (step, reference_step) = bench.begin();
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let values: Vec<f32> = random.units(rows * 2 * WIDE).iter().map(|v| v * 6.0).collect();
            let (x, reference_x) = bench.activation(rows, 2 * WIDE, &values);
            let got = bench.b.gated(x, activation, &step);
            let want = bench.reference.gated(reference_x, activation, &reference_step);
            let case = format!("gated {activation:?}, {rows} rows, seed {}", claims.seed);
            close(&case, &bench.b.download(&got), &want.data, claims.elementwise);
        }
        let (x, reference_x) = bench.activation(rows, HIDDEN, &random.units(rows * HIDDEN));
        let (mut r, mut reference_r) = bench.residual(rows, HIDDEN, &random.units(rows * HIDDEN));
        let got = bench.b.rms_norm(&x, &norm, &step);
        let want = bench.reference.rms_norm(&reference_x, &reference_norm, &reference_step);
        let case = format!("rms_norm, {rows} rows, seed {}", claims.seed);
        close(&case, &bench.b.download(&got), &want.data, claims.elementwise);

        let got = bench.b.final_norm(x, &mut r, &norm, &step);
        let want = bench.reference.final_norm(
            reference_x,
            &mut reference_r,
            &reference_norm,
            &reference_step,
        );
        let case = format!("final_norm, {rows} rows, seed {}", claims.seed);
        close(&case, &bench.b.download(&got), &want.data, claims.elementwise);

        let zeros = bench.b.zeros(&got, &step);
        let zeros = bench.b.download(&zeros);
        assert!(zeros.len() == want.data.len() && zeros.iter().all(|&v| v == 0.0), "zeros");
    }
}

/// Embedding and head of one table in every format.
pub fn vocab<B: Probe>(bench: &mut Bench<B>, claims: &Claims) {
    for &format in &claims.formats {
        for rows in [1, 9, 64] {
            let mut random = Random::new(claims.seed + 99);
            bench.rows(rows);
            let table = random.weight(format, VOCAB, HIDDEN);
            let vocab = bench.b.load_vocab(&table).expect("a table loads");
            let reference_vocab = bench.reference.load_vocab(&table).expect("a table loads");
            let (step, reference_step) = bench.begin();
            let got = bench.b.embed(&vocab, &step);
            let want = bench.reference.embed(&reference_vocab, &reference_step);
            let case = format!("embed {format}, {rows} rows, seed {}", claims.seed);
            close(&case, &bench.b.download(&got), &want.data, claims.elementwise);

            let picked = bench.input.batch.logit_rows.len();
            let (x, reference_x) = bench.activation(picked, HIDDEN, &random.units(picked * HIDDEN));
            let got = bench.b.head(&x, &vocab, &step);
            let want = bench.reference.head(&reference_x, &reference_vocab, &reference_step);
            let case = format!("head {format}, {picked} rows, seed {}", claims.seed);
            close(&case, &bench.b.download(&got), &want.data, tolerance(claims, format));
        }
    }
}

/// Made-up weights are the same on every device.
pub fn made_up<B: Probe>(bench: &mut Bench<B>, claims: &Claims) {
    let matrix = |name: &str, rows, has_bias| DummyMatrix {
        name: name.into(),
        dtype: DType::F32,
        rows,
        cols: HIDDEN,
        has_bias,
    };
    let parts = [matrix("first", 65, false), matrix("second", 31, true), matrix("third", 7, false)];
    for rows in [1, 9, 64] {
        let mut random = Random::new(claims.seed + 7);
        bench.rows(rows);
        let load = "made-up weights load";
        let table = matrix("table", VOCAB, false);
        let vocab = bench.b.load_dummy_vocab(&table).expect(load);
        let reference_vocab = bench.reference.load_dummy_vocab(&table).expect(load);
        let w = bench.b.load_dummy_linear(&parts, Split::Outputs).expect(load);
        let reference_w = bench.reference.load_dummy_linear(&parts, Split::Outputs).expect(load);
        let (step, reference_step) = bench.begin();
        let got = bench.b.embed(&vocab, &step);
        let want = bench.reference.embed(&reference_vocab, &reference_step);
        let case = format!("made-up table, {rows} rows, seed {}", claims.seed);
        close(&case, &bench.b.download(&got), &want.data, claims.elementwise);

        let (x, reference_x) = bench.activation(rows, HIDDEN, &random.units(rows * HIDDEN));
        let got = bench.b.linear(&x, &w, &step);
        let want = bench.reference.linear(&reference_x, &reference_w, &reference_step);
        let case = format!("made-up matrix, {rows} rows, seed {}", claims.seed);
        close(&case, &bench.b.download(&got), &want.data, claims.dense);
    }
}
