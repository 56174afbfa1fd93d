//! The CPU backend: SIMD kernels over packed weights.
