//! The conformance suite on the device, for each element type.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use pagedllm_backend::conformance::{Claims, check};
use pagedllm_core::DType;
use pagedllm_cuda::{CudaBackend, CudaOptions, available};

fn run(dtype: DType, kv_dtype: DType, claims: &Claims) {
    if !available() {
        println!("skipped: no CUDA device");
        return;
    }
    let options = CudaOptions { dtype, kv_dtype, ..CudaOptions::default() };
    check(|| CudaBackend::new(options.clone()).expect("the device opens"), claims);
}

/// Quantized weights are multiplied out and rounded to the activations' type.
fn claims(kv_dtype: DType, weights: f32, elementwise: f32, attention: f32) -> Claims {
    let exact = Claims::exact();
    Claims { kv_dtype, dense: weights, quantized: weights, elementwise, attention, ..exact }
}

#[test]
fn float32() {
    run(DType::F32, DType::F32, &claims(DType::F32, 2e-6, 2e-6, 1e-5));
}

#[test]
fn bfloat16() {
    run(DType::BF16, DType::BF16, &claims(DType::BF16, 6e-3, 6e-3, 1e-2));
}

#[test]
fn float16() {
    run(DType::F16, DType::F16, &claims(DType::F16, 1e-3, 1e-3, 2e-3));
}

#[test]
fn bfloat16_with_a_float16_cache() {
    run(DType::BF16, DType::F16, &claims(DType::F16, 6e-3, 6e-3, 1e-2));
}

/// Keys and values keep three bits behind the first.
#[test]
fn caches_of_fp8() {
    for (dtype, weights) in [(DType::BF16, 6e-3), (DType::F32, 2e-6)] {
        run(dtype, DType::Fp8E4M3, &claims(DType::Fp8E4M3, weights, weights, 6e-2));
    }
}

#[test]
fn float32_with_a_bfloat16_cache() {
    run(DType::F32, DType::BF16, &claims(DType::BF16, 2e-6, 2e-6, 1e-2));
}
