// Products of few rows with a 16-bit matrix: y[m, n] = sum_k x[m, k] w[n, k] + bias[n]. Reading the
// weights is the cost, so everything serves many wide loads in flight. Columns are a multiple of 8.
//
// One row: a warp an output. More rows: a block takes 16 rows of the weights; its 8 warps share the columns in steps of 32 and are
// summed at the end. Weights are the first operand of the tensor core product, x the second. The
// order of columns inside a product is free, so each lane takes 8 neighbouring columns of a row in
// one 16-byte load and feeds them to two products as they lie. The first weights are loaded before
// the kernel waits for x.
#include "../include/pagedllm/mma.cuh"

constexpr int WARPS = 8;
constexpr int STEP = 32; // columns a warp takes at once
constexpr int TILE = 16; // weight rows of a block

__device__ __forceinline__ uint4 load_weights(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// One row of x. Each warp takes one output; x waits in shared memory, [inputs] of type T.
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

// 2 to 8 GROUPS rows of x, on tensor cores, DEPTH steps in flight. The two steps of a pair are
// neighbours, so a warp reads whole 128-byte lines.
template <class T, class Out, int GROUPS, int DEPTH>
__device__ void skinny(const T *w /* [outputs, inputs] */, const T *x /* [rows, inputs] */,
                       const Out *bias /* [outputs] or null */, Out *y /* [rows, outputs] */, uint32_t rows,
                       uint32_t outputs, uint32_t inputs) {
    __shared__ float sums[WARPS][GROUPS * 8][TILE + 1];
    constexpr uint32_t TURN = DEPTH * WARPS * STEP;
    static_assert(DEPTH % 2 == 0, "steps come in pairs");
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, quad = lane >> 2;
    const uint32_t first = blockIdx.x * TILE, start = warp * 2 * STEP + (lane & 3) * 8;
    const T *low = w + size_t(min(first + quad, outputs - 1)) * inputs;
    const T *high = w + size_t(min(first + 8 + quad, outputs - 1)) * inputs;
    uint4 held[DEPTH][2];
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        const uint32_t col = start + (d / 2) * WARPS * 2 * STEP + (d % 2) * STEP;
        held[d][0] = col < inputs ? load_weights(low + col) : zero;
        held[d][1] = col < inputs ? load_weights(high + col) : zero;
    }
    let_next_start();
    wait_for_inputs();

    float acc[GROUPS][4];
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[g][j] = 0;
    for (uint32_t at = start; at < inputs; at += TURN) {
        uint4 b[DEPTH][GROUPS];
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                const uint32_t col = at + (d / 2) * WARPS * 2 * STEP + (d % 2) * STEP, m = g * 8 + quad;
                b[d][g] = col < inputs && m < rows ? *reinterpret_cast<const uint4 *>(x + size_t(m) * inputs + col) : zero;
            }
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const uint4 l = held[d][0], h = held[d][1];
            const uint32_t a0[4] = {l.x, h.x, l.y, h.y}, a1[4] = {l.z, h.z, l.w, h.w};
            const uint32_t col = at + TURN + (d / 2) * WARPS * 2 * STEP + (d % 2) * STEP;
            held[d][0] = col < inputs ? load_weights(low + col) : zero;
            held[d][1] = col < inputs ? load_weights(high + col) : zero;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                mma_16x8x16<T>(acc[g], a0, b[d][g].x, b[d][g].y);
                mma_16x8x16<T>(acc[g], a1, b[d][g].z, b[d][g].w);
            }
        }
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            sums[warp][g * 8 + (lane & 3) * 2 + (j & 1)][quad + (j >> 1) * 8] = acc[g][j];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows * TILE; i += WARPS * 32) {
        const uint32_t m = i / TILE, n = i % TILE;
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

#define SKINNY(name, T, Out, GROUPS, DEPTH, BLOCKS)                                                             \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) linear_skinny_##name##_g##GROUPS(          \
        const T *w, const T *x, const Out *bias, Out *y, uint32_t rows, uint32_t outputs, uint32_t inputs) {    \
        skinny<T, Out, GROUPS, DEPTH>(w, x, bias, y, rows, outputs, inputs);                                    \
    }
#define ONE_ROW(name, T, Out)                                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 3) linear_one_row_##name(                          \
        const T *w, const T *x, const Out *bias, Out *y, uint32_t outputs, uint32_t inputs) {                   \
        one_row<T, Out>(w, x, bias, y, outputs, inputs);                                                        \
    }
#define SKINNIES(name, T, Out) ONE_ROW(name, T, Out) SKINNY(name, T, Out, 1, 4, 3) SKINNY(name, T, Out, 2, 4, 2)
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
