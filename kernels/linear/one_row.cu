// Products that read weights for one row of x, y[n] = sum_k x[k] w[n, k] + bias[n], and the fallback
// for what the library has no algorithm for. Reading the weights is the cost, so every warp has
// eight wide loads in flight, the first of them before the kernel waits for x.
#include "../include/pagedllm/types.cuh"

constexpr int WARPS = 8;

__device__ __forceinline__ uint4 load_weights(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// Each warp takes one output; x waits in shared memory, [inputs] of type T.
template <class T, class Out>
__device__ void one_row(const T *w /* [outputs, inputs] */, const T *x /* [inputs] */, const Out *bias, Out *y,
                        uint32_t outputs, uint32_t inputs) {
    constexpr int DEPTH = 8; // 16-byte loads in flight
    extern __shared__ uint4 shared_x[];
    const uint32_t n = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31, words = inputs / 8;
    const uint4 *row = reinterpret_cast<const uint4 *>(w + size_t(min(n, outputs - 1)) * inputs);
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 held[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) held[d] = d * 32 + lane < words ? load_weights(row + d * 32 + lane) : zero;
    let_next_start();
    wait_for_inputs();
    for (uint32_t i = threadIdx.x; i < words; i += WARPS * 32) shared_x[i] = reinterpret_cast<const uint4 *>(x)[i];
    __syncthreads();
    float sum = 0;
    for (uint32_t at = lane; at < words; at += DEPTH * 32) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const uint32_t here = at + d * 32, next = here + DEPTH * 32;
            const uint4 a = held[d], b = here < words ? shared_x[here] : zero;
            held[d] = next < words ? load_weights(row + next) : zero;
            const T *u = reinterpret_cast<const T *>(&a), *v = reinterpret_cast<const T *>(&b);
#pragma unroll
            for (int j = 0; j < 8; j++) sum = fmaf(to_float(u[j]), to_float(v[j]), sum);
        }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0 && n < outputs) y[n] = from_float<Out>(sum + (bias ? to_float(bias[n]) : 0.f));
}

// One warp an output, any number of columns, any type: what the library has no algorithm for.
// blockIdx.y is the row.
template <class T, class Out>
__device__ void any(const T *w, const T *x, const Out *bias, Out *y, uint32_t outputs, uint32_t inputs) {
    let_next_start();
    wait_for_inputs();
    const uint32_t n = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (n >= outputs) return;
    const T *from = w + size_t(n) * inputs, *of = x + size_t(blockIdx.y) * inputs;
    float sum = 0;
    for (uint32_t k = lane; k < inputs; k += 32) sum += to_float(from[k]) * to_float(of[k]);
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) y[size_t(blockIdx.y) * outputs + n] = from_float<Out>(sum + (bias ? to_float(bias[n]) : 0.f));
}

#define ONE_ROW(name, T, Out)                                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) linear_one_row_##name(                          \
        const T *w, const T *x, const Out *bias, Out *y, uint32_t outputs, uint32_t inputs) {                   \
        one_row<T, Out>(w, x, bias, y, outputs, inputs);                                                        \
    }
#define ANY(name, T, Out)                                                                                       \
    extern "C" __global__ void linear_any_##name(const T *w, const T *x, const Out *bias, Out *y,               \
                                                 uint32_t outputs, uint32_t inputs) {                           \
        any<T, Out>(w, x, bias, y, outputs, inputs);                                                            \
    }
ONE_ROW(bf16_bf16, bf16, bf16)
ONE_ROW(bf16_f32, bf16, float)
ONE_ROW(f16_f16, f16, f16)
ONE_ROW(f16_f32, f16, float)
ANY(bf16_bf16, bf16, bf16)
ANY(bf16_f32, bf16, float)
ANY(f16_f16, f16, f16)
ANY(f16_f32, f16, float)
ANY(f32_f32, float, float)
