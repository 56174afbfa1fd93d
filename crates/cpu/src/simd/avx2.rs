//! AVX2, FMA and F16C.
use super::Kernels;
pub const KERNELS: Kernels = super::scalar::KERNELS;
