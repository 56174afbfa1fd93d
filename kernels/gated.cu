// Gated MLP: out = activation(gate) * up, of rows that hold gate and up one after the other. A
// thread takes 16 bytes of each half; blockIdx.y is the row.
#include "include/pagedllm/activation.cuh"

template <class T, class Activation>
__device__ void gated(const T *gate_up /* [rows, 2 half] */, T *out /* [rows, half] */, uint32_t half) {
    constexpr int N = Lanes<T>::value;
    let_next_start();
    wait_for_inputs();
    const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (i >= half) return;
    const T *row = gate_up + size_t(blockIdx.y) * 2 * half;
    const Vec<T, N> gate = load_vec<T, N>(row + i), up = load_vec<T, N>(row + half + i);
    Vec<T, N> o;
#pragma unroll
    for (int j = 0; j < N; j++)
        o.at[j] = from_float<T>(Activation::apply(to_float(gate.at[j])) * to_float(up.at[j]));
    store_vec<T, N>(out + size_t(blockIdx.y) * half + i, o);
}

#define INSTANCE(name, T, Activation)                                                          \
    extern "C" __global__ void gated_##name(const T *gate_up, T *out, uint32_t half) {         \
        gated<T, Activation>(gate_up, out, half);                                              \
    }
INSTANCE(silu_bf16, bf16, Silu)
INSTANCE(silu_f16, f16, Silu)
INSTANCE(silu_f32, float, SiluExact)
INSTANCE(gelu_tanh_bf16, bf16, GeluTanh)
INSTANCE(gelu_tanh_f16, f16, GeluTanh)
INSTANCE(gelu_tanh_f32, float, GeluTanh)
