// RMSNorm of rows, with and without adding to a residual stream first. One block a row. The
// residual is f32; sums are taken in f32.
#include "include/pagedllm/reduce.cuh"
#include "include/pagedllm/types.cuh"

// Columns a thread keeps in registers between the two passes; wider rows are read twice.
constexpr int KEPT = 16;

template <class T>
__device__ void add_rms_norm(const T *x /* [rows, cols] */, float *residual /* [rows, cols] */,
                             const float *gain /* [cols] */, T *out /* [rows, cols] */, uint32_t cols, float eps) {
    __shared__ float scratch[32];
    let_next_start();
    wait_for_inputs();
    x += size_t(blockIdx.x) * cols;
    residual += size_t(blockIdx.x) * cols;
    out += size_t(blockIdx.x) * cols;
    const uint32_t stride = blockDim.x * 4;
    float kept[KEPT];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < KEPT / 4; k++) {
        const uint32_t i = threadIdx.x * 4 + k * stride;
        if (i < cols) {
            const Vec<T, 4> a = load_vec<T, 4>(x + i);
            Vec<float, 4> r = load_vec<float, 4>(residual + i);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                r.at[j] += to_float(a.at[j]);
                kept[k * 4 + j] = r.at[j];
                squares += r.at[j] * r.at[j];
            }
            store_vec<float, 4>(residual + i, r);
        }
    }
    for (uint32_t i = threadIdx.x * 4 + (KEPT / 4) * stride; i < cols; i += stride) {
        const Vec<T, 4> a = load_vec<T, 4>(x + i);
        Vec<float, 4> r = load_vec<float, 4>(residual + i);
        for (int j = 0; j < 4; j++) {
            r.at[j] += to_float(a.at[j]);
            squares += r.at[j] * r.at[j];
        }
        store_vec<float, 4>(residual + i, r);
    }
    const float factor = rsqrtf(block_reduce(squares, Sum(), 0.f, scratch) / cols + eps);
#pragma unroll
    for (int k = 0; k < KEPT / 4; k++) {
        const uint32_t i = threadIdx.x * 4 + k * stride;
        if (i < cols) {
            const Vec<float, 4> g = load_vec<float, 4>(gain + i);
            Vec<T, 4> o;
#pragma unroll
            for (int j = 0; j < 4; j++) o.at[j] = from_float<T>(kept[k * 4 + j] * factor * g.at[j]);
            store_vec<T, 4>(out + i, o);
        }
    }
    for (uint32_t i = threadIdx.x * 4 + (KEPT / 4) * stride; i < cols; i += stride) {
        const Vec<float, 4> r = load_vec<float, 4>(residual + i), g = load_vec<float, 4>(gain + i);
        Vec<T, 4> o;
        for (int j = 0; j < 4; j++) o.at[j] = from_float<T>(r.at[j] * factor * g.at[j]);
        store_vec<T, 4>(out + i, o);
    }
}

template <class In, class T>
__device__ void rms_norm(const In *x /* [rows, cols] */, const float *gain /* [cols] */, T *out /* [rows, cols] */,
                         uint32_t cols, float eps) {
    __shared__ float scratch[32];
    let_next_start();
    wait_for_inputs();
    x += size_t(blockIdx.x) * cols;
    out += size_t(blockIdx.x) * cols;
    float squares = 0;
    for (uint32_t i = threadIdx.x * 4; i < cols; i += blockDim.x * 4) {
        const Vec<In, 4> a = load_vec<In, 4>(x + i);
#pragma unroll
        for (int j = 0; j < 4; j++) squares += to_float(a.at[j]) * to_float(a.at[j]);
    }
    const float factor = rsqrtf(block_reduce(squares, Sum(), 0.f, scratch) / cols + eps);
    for (uint32_t i = threadIdx.x * 4; i < cols; i += blockDim.x * 4) {
        const Vec<In, 4> a = load_vec<In, 4>(x + i);
        const Vec<float, 4> g = load_vec<float, 4>(gain + i);
        Vec<T, 4> o;
#pragma unroll
        for (int j = 0; j < 4; j++) o.at[j] = from_float<T>(to_float(a.at[j]) * factor * g.at[j]);
        store_vec<T, 4>(out + i, o);
    }
}

#define ADD_INSTANCE(name, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(1024)                                                                \
        add_rms_norm_##name(const T *x, float *residual, const float *gain, T *out, uint32_t cols, float eps) {       \
        add_rms_norm<T>(x, residual, gain, out, cols, eps);                                                           \
    }
#define NORM_INSTANCE(name, In, T)                                                                                    \
    extern "C" __global__ void __launch_bounds__(1024)                                                                \
        rms_norm_##name(const In *x, const float *gain, T *out, uint32_t cols, float eps) {                           \
        rms_norm<In, T>(x, gain, out, cols, eps);                                                                     \
    }
ADD_INSTANCE(bf16, bf16)
ADD_INSTANCE(f16, f16)
ADD_INSTANCE(f32, float)
NORM_INSTANCE(bf16_bf16, bf16, bf16)
NORM_INSTANCE(f16_f16, f16, f16)
NORM_INSTANCE(f32_f32, float, float)
NORM_INSTANCE(f32_bf16, float, bf16)
NORM_INSTANCE(f32_f16, float, f16)
