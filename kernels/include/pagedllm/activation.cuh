// Activations of gated layers.
#pragma once
#include "types.cuh"

struct Silu {
    __device__ static float apply(float x) { return x / (1.f + __expf(-x)); }
};
struct GeluTanh {
    __device__ static float apply(float x) {
        const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
        return 0.5f * x * (1.f + tanhf(inner));
    }
};
// The f32 path promises errors below 1e-4, so it takes the accurate exponential.
struct SiluExact {
    __device__ static float apply(float x) { return x / (1.f + expf(-x)); }
};
