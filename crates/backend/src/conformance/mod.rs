//! The conformance suite: every verb and every fusion of a backend against the scalar reference,
//! on random ragged batches, with unused memory full of NaN.
//!
//! A backend implements [`Probe`] and calls [`check`] with its tolerances. Adding a case means
//! adding a function to `linear.rs`, `attention.rs` or `sampling.rs` and one line to [`check`].
//! A failure names the case and the seed.

mod attention;
mod linear;
mod random;
mod sampling;

use pagedllm_core::{DType, WeightFormat};

use crate::backend::Backend;
pub use random::Random;

/// What the suite needs beyond the verbs: data in and out.
pub trait Probe: Backend {
    /// An activation with these values, `[rows, cols]`, rounded to the backend's type.
    fn upload(&mut self, rows: usize, cols: usize, values: &[f32]) -> Self::Tensor;
    /// A residual stream with these values.
    fn upload_residual(&mut self, rows: usize, cols: usize, values: &[f32]) -> Self::Tensor;
    /// Logits with these values, as `head` returns them.
    fn upload_logits(&mut self, rows: usize, cols: usize, values: &[f32]) -> Self::Tensor;
    /// The values of any activation, residual stream or logits.
    fn download(&mut self, tensor: &Self::Tensor) -> Vec<f32>;
    /// Fills the whole KV cache with NaN.
    fn poison(&mut self, kv: &mut Self::KvCache);
}

/// What a backend claims, and how close it must be: norm of the difference over the norm.
#[derive(Clone, Debug)]
pub struct Claims {
    /// Weight formats that load.
    pub formats: Vec<WeightFormat>,
    /// Head widths that load.
    pub head_dims: Vec<usize>,
    /// Element type of the KV cache.
    pub kv_dtype: DType,
    /// Products with 16- and 32-bit weights.
    pub dense: f32,
    /// Products with quantized weights.
    pub quantized: f32,
    /// Norms, activations, embeddings.
    pub elementwise: f32,
    /// Rotation, cache and attention.
    pub attention: f32,
    /// Seed of everything random.
    pub seed: u64,
}

impl Claims {
    /// All formats, f32 throughout.
    #[must_use]
    pub fn exact() -> Self {
        Self {
            formats: WeightFormat::ALL.to_vec(),
            head_dims: vec![64, 96, 128, 256],
            kv_dtype: DType::F32,
            dense: 1e-5,
            quantized: 1e-5,
            elementwise: 1e-5,
            attention: 1e-5,
            seed: 1,
        }
    }
}

/// Runs every case. `make` gives a fresh backend.
///
/// # Panics
/// At the first case that is off, with its name, sizes and seed.
pub fn check<B: Probe>(make: impl Fn() -> B, claims: &Claims) {
    let mut bench = linear::Bench::new(&make, claims);
    linear::products(&mut bench, claims);
    linear::mixed_parts(&mut bench, claims);
    linear::fusions(&mut bench, claims);
    linear::gated_mlps(&mut bench, claims);
    linear::elementwise(&mut bench, claims);
    linear::vocab(&mut bench, claims);
    linear::made_up(&mut bench, claims);
    drop(bench);
    attention::ragged(&make, claims);
    attention::block_copies(&make, claims);
    attention::shared_prefixes(&make, claims);
    sampling::draws(&make, claims);
    sampling::constraints_and_state(&make, claims);
    sampling::faults_and_scores(&make, claims);
    sampling::tokens_of_the_previous_step(&make, claims);
}

/// Norm of the difference over the norm of `want`; infinite where anything is NaN.
#[must_use]
pub fn relative_error(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len(), "shapes differ");
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let difference = square(&mut got.iter().zip(want).map(|(&g, &w)| f64::from(g) - f64::from(w)));
    let norm = square(&mut want.iter().map(|&w| f64::from(w)));
    let error = (difference / norm.max(f64::from(f32::MIN_POSITIVE))).sqrt() as f32;
    if error.is_nan() { f32::INFINITY } else { error }
}

/// Asserts that `got` is close to `want`.
#[track_caller]
fn close(case: &str, got: &[f32], want: &[f32], tolerance: f32) {
    let error = relative_error(got, want);
    assert!(error <= tolerance, "{case}: relative error {error:e} is over {tolerance:e}");
}
