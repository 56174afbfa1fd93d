// Products of few rows with a 16-bit matrix: y[m, n] = sum_k x[m, k] w[n, k] + bias[n]. Reading the
// weights is the cost, so everything serves many wide loads in flight.
//
// A block takes 16 or 32 rows of the weights; its 8 warps share the columns in steps of 32 and are
// summed at the end. Weights are the first operand of the tensor core product, x the second. The
// order of columns inside a product is free, so each lane takes 8 neighbouring columns of a row in
// one 16-byte load and feeds them to two products as they lie. The first weights are loaded before
// the kernel waits for x.
#include "../include/pagedllm/mma.cuh"

constexpr int WARPS = 8;
constexpr int STEP = 32; // columns a warp takes at once

__device__ __forceinline__ uint4 load_weights(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// TILES of 16 weight rows, GROUPS of 8 rows of x, DEPTH steps in flight.
template <class T, class Out, int TILES, int GROUPS, int DEPTH>
__device__ void skinny(const T *w /* [outputs, inputs] */, const T *x /* [rows, inputs] */,
                       const Out *bias /* [outputs] or null */, Out *y /* [rows, outputs] */, uint32_t rows,
                       uint32_t outputs, uint32_t inputs) {
    __shared__ float sums[WARPS][GROUPS * 8][TILES * 16 + 1];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, quad = lane >> 2, within = (lane & 3) * 8;
    const uint32_t first = blockIdx.x * TILES * 16;
    const T *row[TILES][2];
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            row[t][h] = w + size_t(min(first + t * 16 + h * 8 + quad, outputs - 1)) * inputs + within;
    uint4 held[DEPTH][TILES][2];
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint32_t next = warp * STEP;
#pragma unroll
    for (int d = 0; d < DEPTH; d++, next += WARPS * STEP)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                held[d][t][h] = next + within < inputs ? load_weights(row[t][h] + next) : zero;
    let_next_start();
    wait_for_inputs();

    float acc[TILES][GROUPS][4];
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[t][g][j] = 0;
    for (uint32_t at = warp * STEP; at < inputs; at += DEPTH * WARPS * STEP) {
        uint4 b[DEPTH][GROUPS];
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                const uint32_t col = at + d * WARPS * STEP + within, m = g * 8 + quad;
                b[d][g] = col < inputs && m < rows ? *reinterpret_cast<const uint4 *>(x + size_t(m) * inputs + col) : zero;
            }
#pragma unroll
        for (int d = 0; d < DEPTH; d++, next += WARPS * STEP) {
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const uint4 low = held[d][t][0], high = held[d][t][1];
                const uint32_t a0[4] = {low.x, high.x, low.y, high.y}, a1[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
                for (int h = 0; h < 2; h++)
                    held[d][t][h] = next + within < inputs ? load_weights(row[t][h] + next) : zero;
#pragma unroll
                for (int g = 0; g < GROUPS; g++) {
                    mma_16x8x16<T>(acc[t][g], a0, b[d][g].x, b[d][g].y);
                    mma_16x8x16<T>(acc[t][g], a1, b[d][g].z, b[d][g].w);
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[warp][g * 8 + (lane & 3) * 2 + (j & 1)][t * 16 + quad + (j >> 1) * 8] = acc[t][g][j];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows * TILES * 16; i += WARPS * 32) {
        const uint32_t m = i / (TILES * 16), n = i % (TILES * 16);
        float sum = 0;
#pragma unroll
        for (int s = 0; s < WARPS; s++) sum += sums[s][m][n];
        if (first + n < outputs) {
            if (bias) sum += to_float(bias[first + n]);
            y[size_t(m) * outputs + first + n] = from_float<Out>(sum);
        }
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
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) y[size_t(blockIdx.y) * outputs + n] = from_float<Out>(sum + (bias ? to_float(bias[n]) : 0.f));
}

#define SKINNY(name, T, Out, TILES, GROUPS, DEPTH)                                                              \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) linear_skinny_##name##_t##TILES##_g##GROUPS(       \
        const T *w, const T *x, const Out *bias, Out *y, uint32_t rows, uint32_t outputs, uint32_t inputs) {    \
        skinny<T, Out, TILES, GROUPS, DEPTH>(w, x, bias, y, rows, outputs, inputs);                             \
    }
#define SKINNIES(name, T, Out) SKINNY(name, T, Out, 1, 1, 8) SKINNY(name, T, Out, 2, 1, 4) SKINNY(name, T, Out, 2, 2, 4)
#define ANY(name, T, Out)                                                                                       \
    extern "C" __global__ void linear_any_##name(const T *w, const T *x, const Out *bias, Out *y,               \
                                                 uint32_t outputs, uint32_t inputs) {                           \
        any<T, Out>(w, x, bias, y, outputs, inputs);                                                            \
    }
SKINNIES(bf16_bf16, bf16, bf16)
SKINNIES(bf16_f32, bf16, float)
SKINNIES(f16_f16, f16, f16)
SKINNIES(f16_f32, f16, float)
ANY(bf16_bf16, bf16, bf16)
ANY(bf16_f32, bf16, float)
ANY(f16_f16, f16, f16)
ANY(f16_f32, f16, float)
ANY(f32_f32, float, float)
