//! Every verb on every instruction set that this processor has, against the scalar reference.

#![allow(clippy::print_stdout)] // A path that the processor lacks must say so.

use pagedllm_backend::conformance::{Claims, check};
use pagedllm_core::DType;
use pagedllm_cpu::{CpuBackend, CpuDType, CpuOptions, Isa};

fn run(dtype: CpuDType, claims: &Claims) {
    for isa in Isa::ALL {
        if !isa.is_available() {
            println!("skipped: {isa}");
            continue;
        }
        println!("running: {isa}, {dtype:?}, KV in {}", claims.kv_dtype);
        let mut claims = claims.clone();
        if isa == Isa::Portable {
            claims.head_dims.truncate(2); // Plain loops take their time.
        }
        if dtype == CpuDType::Fast && isa >= Isa::Avx512Bf16 {
            claims.dense = 4e-3; // Both sides of a bf16 product are rounded to 8 bits.
        }
        let options = CpuOptions { num_threads: 2, dtype, isa: Some(isa) };
        check(|| CpuBackend::new(options).expect("the processor has it"), &claims);
    }
}

#[test]
fn float32_is_exact() {
    run(CpuDType::Float32, &Claims::exact());
}

#[test]
fn fast_is_within_its_tolerance() {
    for kv_dtype in [DType::BF16, DType::F16, DType::F32] {
        let claims = Claims {
            kv_dtype,
            dense: 2e-3,
            quantized: 1e-2,
            attention: if kv_dtype == DType::BF16 { 4e-3 } else { 1e-3 },
            ..Claims::exact()
        };
        run(CpuDType::Fast, &claims);
    }
}
