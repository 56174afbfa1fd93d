// y = x . w^T + bias for few rows of x, for Hopper, and the gate behind it where there is one.
//
// Where an RMSNorm lies between two such products, they do its work. The first adds its result to the residual
// stream, gives the sum times the gain to the second, and leaves the squares of what it added up; the second scales
// its rows by the factor that follows from them, which is the same for all columns and so may come after the product.
//
// Such a product costs what reading w costs. A block takes 128 rows of w and all of x; where that makes too few
// blocks, the blocks of a cluster share the columns, each sends its sums through the cluster's shared memory, and
// they are added in the order of the columns, so that equal input gives equal output. One thread copies tiles into
// a ring in shared memory, with w before the kernels before this one are done, since no kernel writes it; two
// warpgroups multiply, w being the operand that has 64 rows.
#include "../include/pagedllm/activation.cuh"
#include "../include/pagedllm/mma.cuh"
#include "../include/pagedllm/plan.h"
#include "../include/pagedllm/reduce.cuh"

// The code of other devices has none of this; the host looks whether the kernels are there.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "../include/pagedllm/hopper.cuh"

struct FewRows {
    TensorMap w;     // [outputs, inputs], boxes of 64 rows and 64 columns
    TensorMap x;     // [rows, inputs], boxes of N rows and 64 columns
    const void *bias;  // [outputs] or null
    void *y;           // [rows, outputs], or half of them where there is a gate
    uint32_t rows, outputs, inputs;
    uint32_t gate;     // GATE_*: w holds gate and up, and y is their gated half
    uint32_t stages;   // of the ring
    float eps;         // of the norm before this product
    float *residual;   // [rows, outputs] where a norm follows, or null: takes the result, and y is it times gain
    const float *gain; // [outputs] where a norm follows
    float *squares;    // [rows, tiles of the first product]: written where a norm follows, read behind one; or null
};

constexpr uint32_t GROUP = 64;              // rows of w of a warpgroup
constexpr uint32_t TILE = 2 * GROUP;        // of a block
constexpr uint32_t DEPTH = ATOM_COLUMNS;    // columns in one stage
constexpr uint32_t MULTIPLIERS = 256;       // threads
constexpr uint32_t WARPS = MULTIPLIERS / 32;
constexpr uint32_t THREADS = MULTIPLIERS + 32;
constexpr uint32_t MAX_STAGES = 12;
constexpr uint32_t GROUP_BYTES = GROUP * DEPTH * 2, W_BYTES = 2 * GROUP_BYTES;
constexpr uint32_t PITCH = TILE + 4; // of sums, a row for each row of x

template <class T> __device__ __forceinline__ void store_four(T *to, const float (&x)[4]) {
    Vec<T, 4> rounded;
#pragma unroll
    for (int i = 0; i < 4; i++) rounded.at[i] = from_float<T>(x[i]);
    store_vec<T, 4>(to, rounded);
}

// Four sums over the cluster, times the row's factor, with bias, rounded to T.
template <class T>
__device__ __forceinline__ void whole_sums(float (&x)[4], uint32_t at, uint32_t ranks, float factor, const T *bias) {
    x[0] = x[1] = x[2] = x[3] = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const float4 part = load_cluster(at, rank);
        x[0] += part.x, x[1] += part.y, x[2] += part.z, x[3] += part.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] *= factor;
        x[i] = to_float(from_float<T>(bias ? x[i] + to_float(bias[i]) : x[i]));
    }
}

// What the norm before this product scales each row by. Neighbouring threads share a row.
template <int N> __device__ __forceinline__ void find_factors(const FewRows &p, float *factors) {
    constexpr uint32_t SHARERS = MULTIPLIERS / N;
    const uint32_t row = threadIdx.x / SHARERS, part = threadIdx.x % SHARERS, tiles = (p.inputs + TILE - 1) / TILE;
    float squares = 0;
    if (row < p.rows) {
#pragma unroll 8
        for (uint32_t tile = part; tile < tiles; tile += SHARERS) squares += p.squares[row * tiles + tile];
    }
#pragma unroll
    for (uint32_t offset = SHARERS / 2; offset > 0; offset /= 2)
        squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    if (part == 0) factors[row] = rsqrtf(squares / p.inputs + p.eps);
}

template <class T, int N> __device__ __forceinline__ void few_rows(const FewRows &p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    __shared__ float factors[N];
    constexpr uint32_t STAGE = W_BYTES + N * DEPTH * 2;
    const uint32_t ring = shared_address(shared), ranks = cluster_size(), rank = cluster_rank();
    const uint32_t tile = blockIdx.x / ranks, stages = p.stages;
    const uint32_t steps = (p.inputs + DEPTH - 1) / DEPTH;
    // The blocks of a cluster take the columns in turn, so that neighbours in memory are read together.
    const uint32_t count = (steps - rank + ranks - 1) / ranks;
    const uint32_t half = p.outputs / 2;

    let_next_start();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < stages; i++) {
            barrier_init(shared_address(full + i), 1);
            barrier_init(shared_address(empty + i), MULTIPLIERS / 32);
        }
        fence_barrier_init();
    }
    __syncthreads();

    if (threadIdx.x >= MULTIPLIERS) {
        if (threadIdx.x == MULTIPLIERS) {
            // With a gate, the second warpgroup takes the rows of up that belong to the first one's.
            const uint32_t first = p.gate == GATE_NONE ? tile * TILE : tile * GROUP;
            const uint32_t second = p.gate == GATE_NONE ? first + GROUP : half + first;
            const auto copy_w = [&](uint32_t step, uint32_t slot) {
                const uint32_t barrier = shared_address(full + slot), to = ring + slot * STAGE;
                barrier_arrive_expecting(barrier, STAGE);
                copy_tile(to, p.w, step * DEPTH, first, barrier);
                copy_tile(to + GROUP_BYTES, p.w, step * DEPTH, second, barrier);
            };
            const auto copy_x = [&](uint32_t step, uint32_t slot) {
                copy_tile(ring + slot * STAGE + W_BYTES, p.x, step * DEPTH, 0, shared_address(full + slot));
            };
            const uint32_t ahead = min(stages, count);
            for (uint32_t i = 0; i < ahead; i++) copy_w(rank + i * ranks, i);
            wait_for_inputs();
            for (uint32_t i = 0; i < ahead; i++) copy_x(rank + i * ranks, i);
            for (uint32_t i = ahead; i < count; i++) {
                const uint32_t slot = i % stages;
                barrier_wait(shared_address(empty + slot), (i / stages - 1) & 1);
                copy_w(rank + i * ranks, slot);
                copy_x(rank + i * ranks, slot);
            }
        }
        __syncwarp();
        cluster_sync();
        cluster_sync();
        return;
    }

    const uint32_t group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    // Of a row of the tile, a warp's lanes take four outputs each; rows in turn, over the cluster and over its warps.
    const uint32_t out = tile * TILE + lane * 4, first_row = rank + warp * ranks, row_step = WARPS * ranks;
    Vec<float, 4> residual[N / WARPS] = {}, gain = {};
    if (p.squares) {
        // While x is under way.
        wait_for_inputs();
        if (!p.residual) {
            find_factors<N>(p, factors);
        } else if (out < p.outputs) {
            gain = load_vec<float, 4>(p.gain + out);
#pragma unroll
            for (uint32_t k = 0; k < N / WARPS; k++) {
                const uint32_t at = first_row + k * row_step;
                if (at < p.rows) residual[k] = load_vec<float, 4>(p.residual + size_t(at) * p.outputs + out);
            }
        }
    }
    float sums[N / 2] = {};
    uint32_t slot = 0, parity = 0, last = 0;
    for (uint32_t i = 0; i < count; i++) {
        barrier_wait(shared_address(full + slot), parity);
        const uint32_t stage = ring + slot * STAGE;
        const uint64_t a = describe<1>(stage + group * GROUP_BYTES), b = describe<1>(stage + W_BYTES);
        pin(sums);
        products_fence();
        // 16 columns are 32 bytes within an atom.
#pragma unroll
        for (uint32_t k = 0; k < DEPTH / 16; k++) product_of_rows<T>(sums, a + 2 * k, b + 2 * k);
        products_commit();
        products_wait<1>();
        if (i > 0 && lane == 0) barrier_arrive(shared_address(empty + last));
        last = slot;
        if (++slot == stages) {
            slot = 0;
            parity ^= 1;
        }
    }
    products_wait<0>();
    pin(sums);
    wait_for_inputs();

    // The ring is read; now it takes the sums.
    named_sync(1, MULTIPLIERS);
    float *table = reinterpret_cast<float *>(shared);
    const uint32_t row = (threadIdx.x / 32 % 4) * 16 + lane / 4 + group * GROUP;
#pragma unroll
    for (uint32_t j = 0; j < N / 8; j++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            table[(j * 8 + lane % 4 * 2 + i % 2) * PITCH + row + i / 2 * 8] = sums[j * 4 + i];
    cluster_sync();
    T *y = static_cast<T *>(p.y);
    const T *bias = static_cast<const T *>(p.bias);
    const bool is_scaled = p.squares && !p.residual;
    if (p.residual) {
        const uint32_t tiles = gridDim.x / ranks;
#pragma unroll
        for (uint32_t k = 0; k < N / WARPS; k++) {
            const uint32_t at = first_row + k * row_step;
            if (at >= p.rows) break;
            float squares = 0;
            if (out < p.outputs) {
                float x[4];
                whole_sums<T>(x, ring + (at * PITCH + lane * 4) * 4, ranks, 1, bias ? bias + out : nullptr);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float sum = residual[k].at[i] + x[i];
                    squares += sum * sum;
                    residual[k].at[i] = sum;
                    x[i] = sum * gain.at[i];
                }
                store_vec<float, 4>(p.residual + size_t(at) * p.outputs + out, residual[k]);
                store_four(y + size_t(at) * p.outputs + out, x);
            }
            squares = warp_reduce(squares, Sum());
            if (lane == 0) p.squares[at * tiles + tile] = squares;
        }
    } else if (p.gate == GATE_NONE) {
        if (out < p.outputs)
            for (uint32_t at = first_row; at < p.rows; at += row_step) {
                const float factor = is_scaled ? factors[at] : 1;
                float x[4];
                whole_sums<T>(x, ring + (at * PITCH + lane * 4) * 4, ranks, factor, bias ? bias + out : nullptr);
                store_four(y + size_t(at) * p.outputs + out, x);
            }
    } else {
        const uint32_t col = threadIdx.x % 16 * 4, out = tile * GROUP + col;
        if (out < half)
            for (uint32_t at = rank + threadIdx.x / 16 * ranks; at < p.rows; at += MULTIPLIERS / 16 * ranks) {
                const uint32_t sums = ring + (at * PITCH + col) * 4;
                const float factor = is_scaled ? factors[at] : 1;
                float gate[4], up[4];
                whole_sums<T>(gate, sums, ranks, factor, bias ? bias + out : nullptr);
                whole_sums<T>(up, sums + GROUP * 4, ranks, factor, bias ? bias + half + out : nullptr);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    gate[i] = (p.gate == GATE_SILU ? Silu::apply(gate[i]) : GeluTanh::apply(gate[i])) * up[i];
                store_four(y + size_t(at) * half + out, gate);
            }
    }
    // Others may still read this block's sums.
    cluster_sync();
}

#define INSTANCE(name, T, N)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) linear_few_rows_##name##_n##N(                      \
        const __grid_constant__ FewRows p) {                                                                  \
        few_rows<T, N>(p);                                                                                    \
    }
#define INSTANCES(N) INSTANCE(bf16, bf16, N) INSTANCE(f16, f16, N)
INSTANCES(16)
INSTANCES(32)
#else
// So that no device gets a module without kernels.
extern "C" __global__ void linear_few_rows_needs_sm90a() {}
#endif
