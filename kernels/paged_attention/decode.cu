// Paged attention of one query token a sequence, split over the context, on tensor cores.
//
// A block takes one item (a range of one sequence's context) and one kv head; its 4 warps take
// tiles of 16 positions in turn, each through its own ring of shared memory, so no barrier stands
// in the loop. All query heads of the kv head are the 16 rows of the product, so keys and values
// are read once for up to 16 heads (blockIdx.z counts further sixteens). At the end the warps'
// results are merged; where a sequence was split, partial results go to memory and the block that
// arrives last merges them.
//
// Where sequences begin with the same blocks, an item can serve several of them: the rows of the
// product are then the query heads of one sequence after the other, and the block arrives once for
// each sequence. Layers with a window get no such items.
//
// Masked positions are never loaded: their rows are zeros, so what lies there can't matter.
//
// The kernels named `attend` also rotate the queries and the token's own key, and store that key and
// value. No other block needs them in this launch: the range that ends with the token takes them from
// registers.
#include "../include/pagedllm/mma.cuh"
#include "variant.cuh"
#include "fp8.cuh"

constexpr int MAX_WARPS = 4;
constexpr int TILE = 16;  // positions of a tile
constexpr int ROWS = 16;  // query heads of a block, of all its sequences

template <int D> struct Shared {
    // 16 bytes of padding a row put the 8 rows of an ldmatrix into different banks.
    static constexpr int ROW = D * 2 + 16;
    static constexpr int STAGE = 2 * TILE * ROW;
    static_assert(2 * STAGE >= ROWS * D * 4, "a warp's ring holds its result at the end");
};

// Loads the 16 positions from `begin` on. Where blocks are whole multiples of a tile, the tile
// lies in `tile_block` and its bytes are contiguous.
template <class T, int D>
__device__ __forceinline__ void load_tile(const AttentionParams &p, const uint32_t *table, uint32_t tile_block,
                                          uint32_t kv_head, uint32_t begin, uint32_t first, uint32_t end,
                                          uint32_t stage) {
    const uint32_t lane = threadIdx.x & 31;
    constexpr int CHUNKS = D / 8;
    const T *keys = static_cast<const T *>(p.keys), *values = static_cast<const T *>(p.values);
    const bool in_one_block = p.block_size % TILE == 0;
    size_t base = 0;
    if (in_one_block) {
        base = ((size_t(tile_block) * p.kv_heads + kv_head) * p.block_size + begin % p.block_size) * D;
        if (begin >= first && begin + TILE <= end) {
            const T *key = keys + base + lane * 8, *value = values + base + lane * 8;
#pragma unroll
            for (int c = 0; c < TILE * CHUNKS / 32; c++) {
                const uint32_t index = c * 32 + lane, to = stage + index / CHUNKS * Shared<D>::ROW + index % CHUNKS * 16;
                copy_async_16(to, key + c * 256, true);
                copy_async_16(to + TILE * Shared<D>::ROW, value + c * 256, true);
            }
            return;
        }
    }
    // Only the first and the last tile come here, so the code is kept short.
#pragma unroll 1
    for (int c = 0; c < TILE * CHUNKS / 32; c++) {
        const uint32_t index = c * 32 + lane, row = index / CHUNKS, chunk = index % CHUNKS;
        const uint32_t position = begin + row;
        const bool valid = position >= first && position < end;
        size_t place = base + index * 8;
        if (!in_one_block && valid) {
            const uint32_t block = table[position / p.block_size];
            place = ((size_t(block) * p.kv_heads + kv_head) * p.block_size + position % p.block_size) * D + chunk * 8;
        }
        const uint32_t to = stage + row * Shared<D>::ROW + chunk * 16;
        copy_async_16(to, keys + (valid ? place : 0), valid);
        copy_async_16(to + TILE * Shared<D>::ROW, values + (valid ? place : 0), valid);
    }
}

// What a sum of weights that are relative to `top` is multiplied with at last.
__device__ __forceinline__ float normalizer(const AttentionParams &p, uint32_t head, float top, float sum) {
    if (!p.sinks) return 1.f / sum;
    const float sink = p.sinks[head] * LOG2_E, over = fmaxf(top, sink);
    const float factor = weight_of(top, over);
    return factor / (sum * factor + exp2f(sink - over));
}

// Merges the partial results of a sequence, of four columns: the maximum of all first, so that the
// loads of the second loop do not wait for each other.
template <int D>
__device__ __forceinline__ Vec<float, 4> merged(const AttentionParams &p, const DecodeItem &item, uint32_t head,
                                                uint32_t col) {
    const size_t first = size_t(item.partial) * p.heads + head;
    float top = -INFINITY;
#pragma unroll 4
    for (uint32_t s = 0; s < item.splits; s++) top = fmaxf(top, __ldcg(&p.partial_stats[first + size_t(s) * p.heads].x));
    Vec<float, 4> value = {};
    float sum = 0;
#pragma unroll 4
    for (uint32_t s = 0; s < item.splits; s++) {
        const size_t from = first + size_t(s) * p.heads;
        const float2 stat = __ldcg(p.partial_stats + from);
        const float factor = weight_of(stat.x, top);
        sum += stat.y * factor;
        const float4 part = __ldcg(reinterpret_cast<const float4 *>(p.partial_out + from * D + col));
        const float parts[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
        for (int j = 0; j < 4; j++) value.at[j] += parts[j] * factor;
    }
    const float factor = normalizer(p, head, top, sum);
#pragma unroll
    for (int j = 0; j < 4; j++) value.at[j] *= factor;
    return value;
}

// Two neighbours of the first half turn with their partners in the second half.
template <class T>
__device__ __forceinline__ void rotate(uint32_t &first, uint32_t &second, float4 angles) {
    const T *a = reinterpret_cast<const T *>(&first), *b = reinterpret_cast<const T *>(&second);
    const float a0 = to_float(a[0]), a1 = to_float(a[1]), b0 = to_float(b[0]), b1 = to_float(b[1]);
    first = pack_pair<T>(a0 * angles.x - b0 * angles.y, a1 * angles.z - b1 * angles.w);
    second = pack_pair<T>(b0 * angles.x + a0 * angles.y, b1 * angles.z + a1 * angles.w);
}

// The token's own key, rotated, and value: a lane has neighbours `2 i, 2 i + 1` of each half.
template <class T, int D> struct OwnToken {
    static constexpr int PAIRS = (D / 4 + 31) / 32;
    uint32_t key[PAIRS][2], value[PAIRS][2];

    __device__ void load(const AttentionParams &p, const T *key_row, const T *value_row, uint32_t position) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const uint32_t col = (i * 32 + (threadIdx.x & 31)) * 2;
            if (col >= D / 2) continue;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                key[i][h] = *reinterpret_cast<const uint32_t *>(key_row + col + h * D / 2);
                value[i][h] = *reinterpret_cast<const uint32_t *>(value_row + col + h * D / 2);
            }
            if (p.rope) rotate<T>(key[i][0], key[i][1], *reinterpret_cast<const float4 *>(p.rope + size_t(position) * (D / 2) + col));
        }
    }
    __device__ void store(T *key_row, T *value_row) const {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const uint32_t col = (i * 32 + (threadIdx.x & 31)) * 2;
            if (col >= D / 2) continue;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                *reinterpret_cast<uint32_t *>(key_row + col + h * D / 2) = key[i][h];
                *reinterpret_cast<uint32_t *>(value_row + col + h * D / 2) = value[i][h];
            }
        }
    }
};

template <class T, class KV, int D, bool FUSED> __device__ void decode(const AttentionParams &p) {
    using S = Shared<D>;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float2 stats[MAX_WARPS][ROWS];
    __shared__ uint32_t completed;
    constexpr int KSTEPS = D / 16, NTILES = D / 8;

    let_next_start();
    wait_for_inputs();
    const DecodeItem *items = static_cast<const DecodeItem *>(p.items);
    const DecodeItem item = items[blockIdx.y];
    if (item.splits == 0) return;
    const bool is_shared = item.length == 0;
    const Variant variant(p);
    const uint32_t group = p.heads / p.kv_heads, kv_head = blockIdx.x, first_row = blockIdx.z * ROWS;
    const uint32_t sequences = is_shared ? item.splits : 1, head0 = kv_head * group + first_row;
    const uint32_t rows = is_shared ? sequences * group : min(group - first_row, uint32_t(ROWS));
    // An item of the sequence that a row belongs to, and the head of the row.
    const auto item_of = [&](uint32_t row) { return is_shared ? items[item.partial + row / group] : item; };
    const auto head_of = [&](uint32_t row) { return head0 + (is_shared ? row % group : row); };
    const uint32_t warps = blockDim.x >> 5;
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, quad = lane >> 2, pair = (lane & 3) * 2;
    const uint32_t first = is_shared ? item.begin : max(item.begin, variant.first_seen(item.length - 1));
    const uint32_t end = item.end;
    const uint32_t begin = first / TILE * TILE;
    const uint32_t *table = p.block_tables + size_t(item.sequence) * p.table_stride;
    // A warp's ring of tiles; at the end it holds the warp's result.
    const uint32_t stages = p.decode_stages, ring_bytes = stages * S::STAGE;
    const uint32_t ring = shared_address(shared) + warp * ring_bytes;

    // The warp that takes the tile of the token itself.
    const bool has_own =
        FUSED && !is_shared && item.split + 1 == item.splits && (end - 1 - begin) / TILE % warps == warp;
    const uint32_t cached_end = FUSED && !is_shared ? min(end, item.length - 1) : end;
    OwnToken<T, D> own;
    uint32_t q[KSTEPS][4];
    // Queries and the own token, in registers.
    const auto load_token = [&]() {
        const T *tokens = static_cast<const T *>(p.qkv);
        const size_t width = size_t(p.heads + 2 * p.kv_heads) * D;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t row = quad + r * 8;
#pragma unroll
            for (int k = 0; k < KSTEPS; k++) q[k][r] = q[k][r + 2] = 0;
            if (row >= rows) continue;
            const DecodeItem its = item_of(row);
            const T *query = tokens + its.token * width + head_of(row) * D + pair;
#pragma unroll
            for (int k = 0; k < KSTEPS; k++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    q[k][h * 2 + r] = *reinterpret_cast<const uint32_t *>(query + k * 16 + h * 8);
            if (!FUSED || !p.rope) continue;
            const float2 *angles = p.rope + size_t(its.length - 1) * (D / 2) + pair;
#pragma unroll
            for (int k = 0; k < KSTEPS / 2; k++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float4 angle = *reinterpret_cast<const float4 *>(angles + k * 16 + h * 8);
                    rotate<T>(q[k][h * 2 + r], q[k + KSTEPS / 2][h * 2 + r], angle);
                }
        }
        const T *key = tokens + item.token * width + (p.heads + kv_head) * D;
        if (has_own) own.load(p, key, key + p.kv_heads * D, item.length - 1);
        if (has_own && blockIdx.z == 0) {
            const uint32_t slot = p.slots[item.token];
            const size_t place =
                ((size_t(slot / p.block_size) * p.kv_heads + kv_head) * p.block_size + slot % p.block_size) * D;
            own.store(static_cast<T *>(const_cast<void *>(p.keys)) + place,
                      static_cast<T *>(const_cast<void *>(p.values)) + place);
        }
    };

    float acc[NTILES][4];
#pragma unroll
    for (int n = 0; n < NTILES; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[n][j] = 0;
    float best[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};

    // Each lane holds the block of one of the warp's next 32 tiles, so that no tile waits for its
    // entry of the table.
    const uint32_t step = warps * TILE;
    uint32_t next = begin + warp * TILE, entry = 0;
    const auto load_next = [&](uint32_t ahead, uint32_t stage) {
        if (next < end) {
            if (ahead % 32 == 0) {
                const uint32_t mine = next + lane * step;
                entry = mine < end ? table[mine / p.block_size] : 0;
            }
            const uint32_t block = __shfl_sync(0xffffffffu, entry, ahead % 32);
            if constexpr (sizeof(KV) == 1) {
                load_tile_fp8<T, D, TILE, S::ROW, 32>(p, table, kv_head, lane, next, first, end, stage);
            } else {
                load_tile<T, D>(p, table, block, kv_head, next, first, cached_end, stage);
            }
        }
        copy_async_commit();
        next += step;
    };
    // Loads run `stages - 1` tiles ahead; they stand here once, to keep the code short. The first of
    // them leave before the token's own.
    uint32_t load_place = 0, place = 0, at = begin + warp * TILE;
#pragma unroll 1
    for (uint32_t ahead = 0;; ahead++) {
        load_next(ahead, ring + load_place * S::STAGE);
        load_place = load_place + 1 == stages ? 0 : load_place + 1;
        if (ahead + 2 < stages) continue;
        if (ahead + 2 == stages) {
            load_token();
            continue;
        }
        if (at >= end) break;
        if (stages == 2) {
            copy_async_wait<1>();
        } else {
            copy_async_wait<2>();
        }
        __syncwarp();
        const uint32_t keys = ring + place * S::STAGE, values = keys + TILE * S::ROW;
        if (has_own && at + TILE >= end) {
            unsigned char *row = shared + warp * ring_bytes + place * S::STAGE + (end - 1 - at) * S::ROW;
            own.store(reinterpret_cast<T *>(row), reinterpret_cast<T *>(row + TILE * S::ROW));
            __syncwarp();
        }

        float scores[2][4] = {};
#pragma unroll
        for (int k = 0; k < KSTEPS; k++) {
            uint32_t b[4];
            load_matrix_x4(b, keys + ((lane & 7) + (lane >> 4) * 8) * S::ROW + k * 32 + ((lane >> 3) & 1) * 16);
            mma_16x8x16<T>(scores[0], q[k], b[0], b[1]);
            mma_16x8x16<T>(scores[1], q[k], b[2], b[3]);
        }
        float tile_best[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t position = at + n * 8 + pair + (j & 1);
                scores[n][j] = position >= first && position < end ? variant.score(scores[n][j]) : -INFINITY;
                tile_best[j >> 1] = fmaxf(tile_best[j >> 1], scores[n][j]);
            }
        float shrink[2], base[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            tile_best[r] = fmaxf(tile_best[r], __shfl_xor_sync(0xffffffffu, tile_best[r], 1));
            tile_best[r] = fmaxf(tile_best[r], __shfl_xor_sync(0xffffffffu, tile_best[r], 2));
            const float now = fmaxf(best[r], tile_best[r]);
            base[r] = finite_or_zero(now);
            shrink[r] = fast_exp2(best[r] - base[r]);
            best[r] = now;
            total[r] *= shrink[r];
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                scores[n][j] = fast_exp2(scores[n][j] - base[j >> 1]);
                total[j >> 1] += scores[n][j];
            }
        const uint32_t weights[4] = {pack_pair<T>(scores[0][0], scores[0][1]), pack_pair<T>(scores[0][2], scores[0][3]),
                                     pack_pair<T>(scores[1][0], scores[1][1]), pack_pair<T>(scores[1][2], scores[1][3])};
        if (__any_sync(0xffffffffu, shrink[0] != 1.f || shrink[1] != 1.f)) {
#pragma unroll
            for (int n = 0; n < NTILES; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[n][j] *= shrink[j >> 1];
        }
#pragma unroll
        for (int n = 0; n < NTILES; n += 2) {
            uint32_t b[4];
            load_matrix_x4_transposed(b, values + (lane & 15) * S::ROW + n * 16 + (lane >> 4) * 16);
            mma_16x8x16<T>(acc[n], weights, b[0], b[1]);
            mma_16x8x16<T>(acc[n + 1], weights, b[2], b[3]);
        }
        __syncwarp();
        place = place + 1 == stages ? 0 : place + 1;
        at += step;
    }
    copy_async_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        if ((lane & 3) == 0) stats[warp][quad + r * 8] = make_float2(best[r], total[r]);
    }
    __syncwarp();
    float *mine = reinterpret_cast<float *>(shared + warp * ring_bytes);
#pragma unroll
    for (int n = 0; n < NTILES; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) mine[(quad + (j >> 1) * 8) * D + n * 8 + pair + (j & 1)] = acc[n][j];
    __syncthreads();

    // The block's result of a row and column, normalized only where it is the whole one.
    T *out = static_cast<T *>(p.out);
    const bool is_whole = item.splits == 1 && !is_shared;
#pragma unroll 1
    for (uint32_t i = threadIdx.x * 4; i < rows * D; i += blockDim.x * 4) {
        const uint32_t row = i / D;
        float top = -INFINITY, sum = 0;
        Vec<float, 4> value = {};
#pragma unroll 1
        for (uint32_t w = 0; w < warps; w++) top = fmaxf(top, stats[w][row].x);
#pragma unroll 1
        for (uint32_t w = 0; w < warps; w++) {
            const float factor = weight_of(stats[w][row].x, top);
            sum += factor * stats[w][row].y;
            const Vec<float, 4> part = load_vec<float, 4>(reinterpret_cast<const float *>(shared + w * ring_bytes) + i);
#pragma unroll
            for (int j = 0; j < 4; j++) value.at[j] += factor * part.at[j];
        }
        const DecodeItem its = item_of(row);
        if (is_whole) {
            const float factor = normalizer(p, head_of(row), top, sum);
            Vec<T, 4> result;
#pragma unroll
            for (int j = 0; j < 4; j++) result.at[j] = from_float<T>(value.at[j] * factor);
            store_vec<T, 4>(out + (size_t(its.token) * p.heads + head_of(row)) * D + i % D, result);
        } else {
            const size_t slot = size_t(its.partial + item.split) * p.heads + head_of(row);
            store_vec<float, 4>(p.partial_out + slot * D + i % D, value);
            if (i % D == 0) p.partial_stats[slot] = make_float2(top, sum);
        }
    }
    if (is_whole) return;

    __threadfence();
    __syncthreads();
    // A bit for each sequence of which this was the last range.
    if (warp == 0) {
        bool is_last = false;
        if (lane < sequences) {
            const DecodeItem its = item_of(lane * group);
            uint32_t *arrived = p.arrived + (size_t(its.sequence) * p.kv_heads + kv_head) * gridDim.z + blockIdx.z;
            is_last = atomicAdd(arrived, 1u) + 1 == its.splits;
            if (is_last) *arrived = 0;
        }
        const uint32_t lasts = __ballot_sync(0xffffffffu, is_last);
        if (lane == 0) completed = lasts;
    }
    __syncthreads();
    if (completed == 0) return;
    __threadfence();
#pragma unroll 1
    for (uint32_t i = threadIdx.x * 4; i < rows * D; i += blockDim.x * 4) {
        const uint32_t row = i / D;
        if (is_shared && (completed >> row / group & 1) == 0) continue;
        const DecodeItem its = item_of(row);
        const Vec<float, 4> value = merged<D>(p, its, head_of(row), i % D);
        Vec<T, 4> result;
#pragma unroll
        for (int j = 0; j < 4; j++) result.at[j] = from_float<T>(value.at[j]);
        store_vec<T, 4>(out + (size_t(its.token) * p.heads + head_of(row)) * D + i % D, result);
    }
}

#define INSTANCE(name, T, D)                                                                              \
    extern "C" __global__ void __launch_bounds__(MAX_WARPS * 32)                                          \
        paged_attention_decode_##name##_d##D(const __grid_constant__ AttentionParams p) {                 \
        decode<T, T, D, false>(p);                                                                        \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(MAX_WARPS * 32)                                          \
        paged_attention_attend_##name##_d##D(const __grid_constant__ AttentionParams p) {                 \
        decode<T, T, D, true>(p);                                                                         \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(MAX_WARPS * 32)                                          \
        paged_attention_decode_##name##_fp8_d##D(const __grid_constant__ AttentionParams p) {             \
        decode<T, fp8, D, false>(p);                                                                      \
    }
#define INSTANCES(D) INSTANCE(bf16, bf16, D) INSTANCE(f16, f16, D)
INSTANCES(64)
INSTANCES(96)
INSTANCES(128)
INSTANCES(256)
