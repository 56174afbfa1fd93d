// Products that read weights for one row of x, y[n] = sum_k x[k] w[n, k] + bias[n], with what comes
// before and after them, and the fallback for what the library has no algorithm for. Reading the
// weights is the cost, so every warp has eight wide loads in flight, the first of them before the
// kernel waits for x.
#include "../include/pagedllm/activation.cuh"
#include "../include/pagedllm/reduce.cuh"
#include <type_traits>

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * 32;

// Loads 16 bytes of weights, which are read once.
__device__ __forceinline__ uint4 load_weights(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// Dot products of the lane's columns: 8 of `a` and 8 of `b`.
template <class T> __device__ __forceinline__ float dot(const uint4 &a, const uint4 &b, float sum) {
    const T *u = reinterpret_cast<const T *>(&a), *v = reinterpret_cast<const T *>(&b);
#pragma unroll
    for (int j = 0; j < 8; j++) sum = fmaf(to_float(u[j]), to_float(v[j]), sum);
    return sum;
}

constexpr int DEPTH = 8; // 16-byte loads in flight, of each matrix that a warp reads

// Each warp takes one output; x waits in shared memory, [inputs] of type T.
template <class T, class Out>
__device__ void one_row(const T *w /* [outputs, inputs] */, const T *x /* [inputs] */, const Out *bias, Out *y,
                        uint32_t outputs, uint32_t inputs) {
    extern __shared__ uint4 shared_x[];
    const uint32_t n = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31, words = inputs / 8;
    const uint4 *row = reinterpret_cast<const uint4 *>(w + size_t(min(n, outputs - 1)) * inputs);
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 held[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) held[d] = d * 32 + lane < words ? load_weights(row + d * 32 + lane) : zero;
    let_next_start();
    wait_for_inputs();
    for (uint32_t i = threadIdx.x; i < words; i += THREADS) shared_x[i] = reinterpret_cast<const uint4 *>(x)[i];
    __syncthreads();
    float sum = 0;
    for (uint32_t at = lane; at < words; at += DEPTH * 32) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const uint32_t here = at + d * 32, next = here + DEPTH * 32;
            const uint4 a = held[d], b = here < words ? shared_x[here] : zero;
            held[d] = next < words ? load_weights(row + next) : zero;
            sum = dot<T>(a, b, sum);
        }
    }
    sum = warp_reduce(sum, Sum());
    if (lane == 0 && n < outputs) y[n] = from_float<Out>(sum + (bias ? to_float(bias[n]) : 0.f));
}

// Writes the RMSNorm of x + residual to shared memory, and the sum to `sum`, which is not `residual`:
// other blocks read that.
template <class T>
__device__ void add_and_norm(const T *x, const float *residual, const float *gain, float *sum, float eps, T *to,
                             uint32_t inputs) {
    constexpr int KEPT = 16; // columns that a thread keeps; more are computed twice
    __shared__ float scratch[32];
    float kept[KEPT], squares = 0;
    const auto add = [&](uint32_t i) {
        const Vec<T, 4> a = load_vec<T, 4>(x + i);
        Vec<float, 4> r = load_vec<float, 4>(residual + i);
#pragma unroll
        for (int j = 0; j < 4; j++) r.at[j] += to_float(a.at[j]);
        return r;
    };
    const auto store = [&](uint32_t i, const Vec<float, 4> &r, float factor) {
        const Vec<float, 4> g = load_vec<float, 4>(gain + i);
        Vec<T, 4> o;
#pragma unroll
        for (int j = 0; j < 4; j++) o.at[j] = from_float<T>(r.at[j] * factor * g.at[j]);
        store_vec<T, 4>(to + i, o);
        if (blockIdx.x == 0) store_vec<float, 4>(sum + i, r);
    };
#pragma unroll
    for (int k = 0; k < KEPT / 4; k++) {
        const uint32_t i = (threadIdx.x + k * THREADS) * 4;
        if (i >= inputs) continue;
        const Vec<float, 4> r = add(i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            kept[k * 4 + j] = r.at[j];
            squares += r.at[j] * r.at[j];
        }
    }
#pragma unroll 1
    for (uint32_t i = (threadIdx.x + KEPT / 4 * THREADS) * 4; i < inputs; i += THREADS * 4) {
        const Vec<float, 4> r = add(i);
        for (int j = 0; j < 4; j++) squares += r.at[j] * r.at[j];
    }
    const float factor = rsqrtf(block_reduce(squares, Sum(), 0.f, scratch) / inputs + eps);
#pragma unroll
    for (int k = 0; k < KEPT / 4; k++) {
        const uint32_t i = (threadIdx.x + k * THREADS) * 4;
        if (i >= inputs) continue;
        Vec<float, 4> r;
#pragma unroll
        for (int j = 0; j < 4; j++) r.at[j] = kept[k * 4 + j];
        store(i, r, factor);
    }
#pragma unroll 1
    for (uint32_t i = (threadIdx.x + KEPT / 4 * THREADS) * 4; i < inputs; i += THREADS * 4) store(i, add(i), factor);
}

// The product of a sum's RMSNorm. Every block norms the row for itself, so there are only as many
// blocks as run at once: a warp takes every so-many-th output, and the loads of the next one leave
// while this one is added up. With an activation an output is a pair of rows of w, gate in the first
// half of them and up in the second.
template <class T, class Activation>
__device__ void one_row_normed(const T *w /* [outputs or 2 outputs, inputs] */, const T *x, const T *bias, T *y,
                               uint32_t outputs, uint32_t inputs, const float *residual, const float *gain,
                               float *sum_out, float eps) {
    constexpr bool GATED = !std::is_void<Activation>::value;
    constexpr int SETS = GATED ? 2 : 1;
    extern __shared__ uint4 shared_x[];
    const uint32_t stride = gridDim.x * WARPS, lane = threadIdx.x & 31, words = inputs / 8;
    const uint4 *weights = reinterpret_cast<const uint4 *>(w);
    const size_t set = size_t(outputs) * words; // words from gate to up
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint32_t n = blockIdx.x * WARPS + (threadIdx.x >> 5);
    uint4 held[DEPTH][SETS];
    const uint4 *first = weights + size_t(min(n, outputs - 1)) * words;
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
#pragma unroll
        for (int s = 0; s < SETS; s++)
            held[d][s] = lane + d * 32 < words ? load_weights(first + s * set + lane + d * 32) : zero;
    let_next_start();
    wait_for_inputs();
    add_and_norm<T>(x, residual, gain, sum_out, eps, reinterpret_cast<T *>(shared_x), inputs);
    __syncthreads();
#pragma unroll 1
    for (; n < outputs; n += stride) {
        float sum[SETS] = {};
#pragma unroll 1
        for (uint32_t at = lane; at < words; at += DEPTH * 32) {
            uint32_t next_at = at + DEPTH * 32, next_n = n;
            if (next_at >= words) {
                next_at = lane;
                next_n = n + stride;
            }
            const uint4 *next = weights + size_t(next_n) * words + next_at;
            const uint32_t end = next_n < outputs ? words : 0;
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                const uint4 b = at + d * 32 < words ? shared_x[at + d * 32] : zero;
#pragma unroll
                for (int s = 0; s < SETS; s++) {
                    const uint4 a = held[d][s];
                    held[d][s] = next_at + d * 32 < end ? load_weights(next + s * set + d * 32) : zero;
                    sum[s] = dot<T>(a, b, sum[s]);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < SETS; s++) sum[s] = warp_reduce(sum[s], Sum());
        if (lane != 0) continue;
        if (bias)
            for (int s = 0; s < SETS; s++) sum[s] += to_float(bias[s * outputs + n]);
        float result = sum[0];
        // The halves are rounded as where they go through memory.
        if constexpr (GATED)
            result = Activation::apply(to_float(from_float<T>(sum[0]))) * to_float(from_float<T>(sum[1]));
        y[n] = from_float<T>(result);
    }
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
    sum = warp_reduce(sum, Sum());
    if (lane == 0) y[size_t(blockIdx.y) * outputs + n] = from_float<Out>(sum + (bias ? to_float(bias[n]) : 0.f));
}

#define ONE_ROW(name, T, Out)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) linear_one_row_##name(                             \
        const T *w, const T *x, const Out *bias, Out *y, uint32_t outputs, uint32_t inputs) {                   \
        one_row<T, Out>(w, x, bias, y, outputs, inputs);                                                        \
    }
#define NORMED(name, T, Activation)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) linear_one_row_normed_##name(                      \
        const T *w, const T *x, const T *bias, T *y, uint32_t outputs, uint32_t inputs, const float *residual,  \
        const float *gain, float *sum, float eps) {                                                             \
        one_row_normed<T, Activation>(w, x, bias, y, outputs, inputs, residual, gain, sum, eps);                \
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
NORMED(bf16, bf16, void)
NORMED(silu_bf16, bf16, Silu)
NORMED(gelu_tanh_bf16, bf16, GeluTanh)
NORMED(f16, f16, void)
NORMED(silu_f16, f16, Silu)
NORMED(gelu_tanh_f16, f16, GeluTanh)
ANY(bf16_bf16, bf16, bf16)
ANY(bf16_f32, bf16, float)
ANY(f16_f16, f16, f16)
ANY(f16_f32, f16, float)
ANY(f32_f32, float, float)
