// Paged attention of chunks of query tokens over the cache, on tensor cores, with the online
// softmax of FlashAttention-2.
//
// A block takes one item (some query tokens of one chunk) and one kv head. Its rows are (token,
// head of the group): all heads that share keys and values, so short chunks and any group ratio
// fill the tile. Each warp owns 16 or 32 rows; the block walks the context in tiles, double buffered.
// Positions outside the context are zeros in shared memory; masks do the rest.
#include "../include/pagedllm/mma.cuh"
#include "variant.cuh"
#include "fp8.cuh"

constexpr int STAGES = 2;

template <int D> struct Tiling {
    static constexpr int WARPS = 4;
    // Tiles of 16 rows that a warp owns: with two of them each fragment of keys and values, once
    // in registers, serves twice.
    static constexpr int OWNED = D > 128 ? 1 : 2;
    static constexpr int ROWS = WARPS * OWNED * 16; // crates/cuda/src/dispatch.rs: prefill_rows
    static constexpr int TILE = D > 64 ? 32 : 64;
    static constexpr int ROW = D * 2 + 16; // bytes; the padding keeps ldmatrix free of conflicts
    static constexpr int STAGE = 2 * TILE * ROW;
    static constexpr int QUERIES = STAGES * STAGE; // where the queries lie
    static constexpr int BYTES = QUERIES + ROWS * ROW;
};

// Loads the positions from `begin` on, a multiple of 16. Where blocks are whole multiples of 16,
// each run of 16 rows lies in one block and is contiguous.
template <class T, int D>
__device__ __forceinline__ void load_tile(const AttentionParams &p, const uint32_t *table, uint32_t kv_head,
                                          uint32_t begin, uint32_t first, uint32_t end, uint32_t stage) {
    using S = Tiling<D>;
    constexpr int CHUNKS = D / 8, THREADS = S::WARPS * 32, RUN = 16 * CHUNKS;
    const T *keys = static_cast<const T *>(p.keys), *values = static_cast<const T *>(p.values);
    const bool in_runs = p.block_size % 16 == 0;
    if (in_runs && begin >= first && begin + S::TILE <= end) {
        size_t base[S::TILE / 16];
#pragma unroll
        for (int r = 0; r < S::TILE / 16; r++) {
            const uint32_t start = begin + r * 16, block = table[start / p.block_size];
            base[r] = ((size_t(block) * p.kv_heads + kv_head) * p.block_size + start % p.block_size) * D;
        }
#pragma unroll
        for (int c = 0; c < S::TILE * CHUNKS / THREADS; c++) {
            const uint32_t index = c * THREADS + threadIdx.x, to = stage + index / CHUNKS * S::ROW + index % CHUNKS * 16;
            // Where a turn of the block can cross a run, there are two of them.
            static_assert(RUN % THREADS == 0 || S::TILE == 32, "runs are told apart without an index");
            const size_t run = RUN % THREADS == 0 ? base[c * THREADS / RUN] : (index < RUN ? base[0] : base[S::TILE / 16 - 1]);
            const size_t place = run + index % RUN * 8;
            copy_async_16(to, keys + place, true);
            copy_async_16(to + S::TILE * S::ROW, values + place, true);
        }
        return;
    }
#pragma unroll
    for (int c = 0; c < S::TILE * CHUNKS / THREADS; c++) {
        const uint32_t index = c * THREADS + threadIdx.x, row = index / CHUNKS, chunk = index % CHUNKS;
        const uint32_t position = begin + row;
        const bool valid = position >= first && position < end;
        size_t place = 0;
        if (valid) {
            const uint32_t start = in_runs ? begin + index / RUN * 16 : position;
            const uint32_t within = in_runs ? index % RUN : chunk;
            const uint32_t block = table[start / p.block_size];
            place = ((size_t(block) * p.kv_heads + kv_head) * p.block_size + start % p.block_size) * D + within * 8;
        }
        const uint32_t to = stage + row * S::ROW + chunk * 16;
        copy_async_16(to, keys + place, valid);
        copy_async_16(to + S::TILE * S::ROW, values + place, valid);
    }
}

template <class T, class KV, int D>
__device__ __forceinline__ void load(const AttentionParams &p, const uint32_t *table, uint32_t kv_head, uint32_t begin,
                                     uint32_t first, uint32_t end, uint32_t stage) {
    using S = Tiling<D>;
    if constexpr (sizeof(KV) == 1) {
        load_tile_fp8<T, D, S::TILE, S::ROW, S::WARPS * 32>(p, table, kv_head, threadIdx.x, begin, first, end, stage);
    } else {
        load_tile<T, D>(p, table, kv_head, begin, first, end, stage);
    }
}

template <class T, class KV, int D> __device__ void prefill(const AttentionParams &p) {
    using S = Tiling<D>;
    extern __shared__ __align__(16) unsigned char shared[];
    constexpr int KSTEPS = D / 16, NTILES = D / 8, COLS = S::TILE / 8, OWNED = S::OWNED, CHUNKS = D / 8;

    let_next_start();
    wait_for_inputs();
    const PrefillItem item = static_cast<const PrefillItem *>(p.items)[blockIdx.x];
    const Variant variant(p);
    const uint32_t group = p.heads / p.kv_heads, kv_head = blockIdx.y;
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, quad = lane >> 2, pair = (lane & 3) * 2;
    const uint32_t *table = p.block_tables + size_t(item.sequence) * p.table_stride;
    const uint32_t rows = item.count * group, ring = shared_address(shared), queries = ring + S::QUERIES;
    // The lane's row `r` (0 or 1) of its tile `m`.
    const auto row_of = [&](int m, int r) { return (warp * OWNED + m) * 16 + quad + r * 8; };

    const uint32_t first = variant.first_seen(item.position), end = item.position + item.count;
    // Tiles start at whole multiples, so only the first and the last ones need masks.
    const uint32_t begin = first / S::TILE * S::TILE;
    for (uint32_t i = threadIdx.x; i < S::ROWS * CHUNKS; i += S::WARPS * 32) {
        const uint32_t row = i / CHUNKS, chunk = i % CHUNKS;
        const bool real = row < rows;
        const uint32_t token = item.token + (real ? row / group : 0), head = kv_head * group + (real ? row % group : 0);
        const T *from = static_cast<const T *>(p.qkv) + (size_t(token) * (p.heads + 2 * p.kv_heads) + head) * D + chunk * 8;
        copy_async_16(queries + row * S::ROW + chunk * 16, from, real);
    }
    load<T, KV, D>(p, table, kv_head, begin, first, end, ring);
    copy_async_commit();

    float acc[OWNED][NTILES][4], best[OWNED][2], total[OWNED][2];
#pragma unroll
    for (int m = 0; m < OWNED; m++) {
#pragma unroll
        for (int n = 0; n < NTILES; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[m][n][j] = 0;
        best[m][0] = best[m][1] = -INFINITY;
        total[m][0] = total[m][1] = 0;
    }
    uint32_t turn = 0;
    for (uint32_t at = begin; at < end; at += S::TILE, turn++) {
        if (at + S::TILE < end)
            load<T, KV, D>(p, table, kv_head, at + S::TILE, first, end, ring + (turn + 1) % STAGES * S::STAGE);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        const uint32_t keys = ring + turn % STAGES * S::STAGE, values = keys + S::TILE * S::ROW;

        float scores[OWNED][COLS][4];
#pragma unroll
        for (int m = 0; m < OWNED; m++)
#pragma unroll
            for (int n = 0; n < COLS; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) scores[m][n][j] = 0;
#pragma unroll
        for (int k = 0; k < KSTEPS; k++) {
            uint32_t q[OWNED][4];
#pragma unroll
            for (int m = 0; m < OWNED; m++)
                load_matrix_x4(q[m], queries + ((warp * OWNED + m) * 16 + (lane & 15)) * S::ROW + k * 32 + (lane >> 4) * 16);
#pragma unroll
            for (int n = 0; n < COLS; n += 2) {
                uint32_t b[4];
                load_matrix_x4(b, keys + (n * 8 + (lane & 7) + (lane >> 4) * 8) * S::ROW + k * 32 + ((lane >> 3) & 1) * 16);
#pragma unroll
                for (int m = 0; m < OWNED; m++) {
                    mma_16x8x16<T>(scores[m][n], q[m], b[0], b[1]);
                    mma_16x8x16<T>(scores[m][n + 1], q[m], b[2], b[3]);
                }
            }
        }
        // Where every row sees the whole tile, scores stay as they are and the scale goes into the
        // exponent's one multiplication.
        const bool whole = variant.soft_cap == 0.f && at + S::TILE <= item.position + 1 && at >= variant.first_seen(end - 1);
        const float factor = whole ? variant.scale * LOG2_E : 1.f;
        if (!whole) {
#pragma unroll
            for (int m = 0; m < OWNED; m++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t row = row_of(m, r), position = item.position + (row < rows ? row / group : 0);
                    const uint32_t seen = variant.first_seen(position);
#pragma unroll
                    for (int n = 0; n < COLS; n++)
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                            const uint32_t key = at + n * 8 + pair + c;
                            float &score = scores[m][n][r * 2 + c];
                            score = key <= position && key >= seen ? variant.score(score) : -INFINITY;
                        }
                }
        }
#pragma unroll
        for (int m = 0; m < OWNED; m++) {
            float tile_best[2] = {-INFINITY, -INFINITY}, shrink[2], base[2];
#pragma unroll
            for (int n = 0; n < COLS; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) tile_best[j >> 1] = fmaxf(tile_best[j >> 1], scores[m][n][j]);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                tile_best[r] = fmaxf(tile_best[r], __shfl_xor_sync(0xffffffffu, tile_best[r], 1));
                tile_best[r] = fmaxf(tile_best[r], __shfl_xor_sync(0xffffffffu, tile_best[r], 2));
                const float now = fmaxf(best[m][r], tile_best[r] * factor);
                base[r] = finite_or_zero(now);
                shrink[r] = fast_exp2(best[m][r] - base[r]);
                best[m][r] = now;
                total[m][r] *= shrink[r];
            }
#pragma unroll
            for (int n = 0; n < COLS; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    scores[m][n][j] = fast_exp2(fmaf(scores[m][n][j], factor, -base[j >> 1]));
                    total[m][j >> 1] += scores[m][n][j];
                }
            if (__any_sync(0xffffffffu, shrink[0] != 1.f || shrink[1] != 1.f)) {
#pragma unroll
                for (int n = 0; n < NTILES; n++)
#pragma unroll
                    for (int j = 0; j < 4; j++) acc[m][n][j] *= shrink[j >> 1];
            }
        }
#pragma unroll
        for (int k = 0; k < COLS / 2; k++) {
            uint32_t weights[OWNED][4];
#pragma unroll
            for (int m = 0; m < OWNED; m++) {
                weights[m][0] = pack_pair<T>(scores[m][2 * k][0], scores[m][2 * k][1]);
                weights[m][1] = pack_pair<T>(scores[m][2 * k][2], scores[m][2 * k][3]);
                weights[m][2] = pack_pair<T>(scores[m][2 * k + 1][0], scores[m][2 * k + 1][1]);
                weights[m][3] = pack_pair<T>(scores[m][2 * k + 1][2], scores[m][2 * k + 1][3]);
            }
#pragma unroll
            for (int n = 0; n < NTILES; n += 2) {
                uint32_t b[4];
                load_matrix_x4_transposed(b, values + (k * 16 + (lane & 15)) * S::ROW + n * 16 + (lane >> 4) * 16);
#pragma unroll
                for (int m = 0; m < OWNED; m++) {
                    mma_16x8x16<T>(acc[m][n], weights[m], b[0], b[1]);
                    mma_16x8x16<T>(acc[m][n + 1], weights[m], b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }
    copy_async_wait<0>();
#pragma unroll
    for (int m = 0; m < OWNED; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = total[m][r], factor = 1;
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const uint32_t row = row_of(m, r);
            if (row >= rows) continue;
            const uint32_t token = item.token + row / group, head = kv_head * group + row % group;
            if (p.sinks) {
                const float sink = p.sinks[head] * LOG2_E, over = fmaxf(best[m][r], sink);
                factor = weight_of(best[m][r], over);
                sum = sum * factor + exp2f(sink - over);
            }
            factor /= sum;
            T *to = static_cast<T *>(p.out) + (size_t(token) * p.heads + head) * D;
#pragma unroll
            for (int n = 0; n < NTILES; n++)
                *reinterpret_cast<uint32_t *>(to + n * 8 + pair) =
                    pack_pair<T>(acc[m][n][r * 2] * factor, acc[m][n][r * 2 + 1] * factor);
        }
}

#define INSTANCE(name, T, D)                                                                               \
    extern "C" __global__ void __launch_bounds__(Tiling<D>::WARPS * 32)                                    \
        paged_attention_prefill_##name##_d##D(const __grid_constant__ AttentionParams p) {                 \
        prefill<T, T, D>(p);                                                                               \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(Tiling<D>::WARPS * 32)                                    \
        paged_attention_prefill_##name##_fp8_d##D(const __grid_constant__ AttentionParams p) {             \
        prefill<T, fp8, D>(p);                                                                             \
    }
#define INSTANCES(D) INSTANCE(bf16, bf16, D) INSTANCE(f16, f16, D)
INSTANCES(64)
INSTANCES(96)
INSTANCES(128)
INSTANCES(256)
