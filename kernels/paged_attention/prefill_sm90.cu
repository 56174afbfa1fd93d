// Paged attention of chunks of query tokens over the cache, for Hopper: the products run on whole
// warpgroups (wgmma) while softmax and loads go on beside them, as in FlashAttention-3.
//
// Work is (item, kv head), longest contexts first; a block, one a multiprocessor, takes its share
// in turn. Rows are (token, head of the group), 64 a warpgroup. One warpgroup loads: a warp keys and a
// warp values, into rings of tiles, two warps the queries. The others multiply. They walk the
// context backwards, so that masks come first, and have the scores of one tile and the values
// of the one before under way at once. They issue in turn, so that one's softmax lies beside
// another's products.
//
// Values outside the context are zeros in shared memory; keys outside it are masked.
#include "../include/pagedllm/mma.cuh"
#include "variant.cuh"

// The code of other devices has none of this; crates/cuda/src/load.rs looks whether the kernels are there.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "../include/pagedllm/hopper.cuh"

constexpr int TILE = 128; // positions
constexpr int RUN = 16;   // positions that lie together in the cache, the rows of a box
constexpr int RUNS = TILE / RUN;

template <int D> struct Tiling {
    static constexpr int GROUPS = D > 64 ? 2 : 3;    // warpgroups that multiply
    static constexpr int ROWS = GROUPS * 64;         // crates/cuda/src/dispatch.rs: hopper_prefill
    static constexpr int THREADS = GROUPS * 128 + 128; // likewise
    static constexpr int STAGES = D > 64 ? 2 : 4;      // likewise
    static constexpr int QUERY_STAGES = 2;             // likewise
    static constexpr int ATOMS = D / 64; // across
    static constexpr uint32_t ROW_BYTES = D * 2, STAGE = TILE * ROW_BYTES, QUERY_STAGE = ROWS * ROW_BYTES;
    static constexpr uint32_t KEYS = QUERY_STAGES * QUERY_STAGE; // where they lie
    static constexpr uint32_t VALUES = KEYS + STAGES * STAGE;
    static constexpr uint32_t BARRIERS = VALUES + STAGES * STAGE;
    static constexpr uint32_t BYTES = BARRIERS + 16 * (2 * STAGES + QUERY_STAGES);
    // Of a thread. Together they are no more than what the block starts with, or taking some would wait for ever.
    static constexpr int REGISTERS = GROUPS == 2 ? 232 : 160, LOADER_REGISTERS = GROUPS == 2 ? 40 : 32;
    static constexpr int START_REGISTERS = 65536 / THREADS / 8 * 8;
    static_assert(GROUPS * REGISTERS + LOADER_REGISTERS <= (GROUPS + 1) * START_REGISTERS, "registers");
};

// Tiles of one kind on their way through shared memory. Its barriers are those of full stages, then
// those of empty ones.
template <int STAGES, uint32_t BYTES> struct Ring {
    uint32_t tiles, barriers, turn = 0;
    __device__ Ring(uint32_t tiles, uint32_t barriers) : tiles(tiles), barriers(barriers) {}
    __device__ __forceinline__ void init(uint32_t writers, uint32_t readers) const {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(barriers + 8 * i, writers);
            barrier_init(barriers + 8 * (STAGES + i), readers);
        }
    }
    __device__ __forceinline__ uint32_t tile() const { return tiles + turn % STAGES * BYTES; }
    __device__ __forceinline__ uint32_t full() const { return barriers + 8 * (turn % STAGES); }
    __device__ __forceinline__ uint32_t empty() const { return full() + 8 * STAGES; }
    __device__ __forceinline__ void wait_full() const { barrier_wait(full(), turn / STAGES & 1); }
    __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), turn / STAGES & 1 ^ 1); }
    // By every warp that reads.
    __device__ __forceinline__ void release() {
        if ((threadIdx.x & 31) == 0) barrier_arrive(empty());
        turn++;
    }
};
template <int D> using Tiles = Ring<Tiling<D>::STAGES, Tiling<D>::STAGE>;
template <int D> using Queries = Ring<Tiling<D>::QUERY_STAGES, Tiling<D>::QUERY_STAGE>;

// An item for one kv head.
struct Work {
    PrefillItem item;
    uint32_t kv_head, first, end; // the positions that the item's tokens see
    uint32_t last, tiles;         // the last tile's first position; how many there are
};

// A block's share of all work. Every other round goes the other way, so that sums of descending
// sizes come out even.
struct Share {
    const AttentionParams &p;
    const uint32_t total;
    uint32_t begin = 0;
    bool back = false;
    __device__ Share(const AttentionParams &p, uint32_t num_items) : p(p), total(num_items * p.kv_heads) {}
    // Whether there was another one.
    __device__ __forceinline__ bool next(Work &work) {
        // Only the last round can have too few for all blocks.
        const uint32_t index = begin + (back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (index >= total) return false;
        begin += gridDim.x;
        back = !back;
        work.item = static_cast<const PrefillItem *>(p.items)[index / p.kv_heads];
        work.kv_head = index % p.kv_heads;
        work.first = Variant(p).first_seen(work.item.position);
        work.end = work.item.position + work.item.count;
        work.last = (work.end - 1) / TILE * TILE;
        work.tiles = work.last / TILE - work.first / TILE + 1;
        return true;
    }
};

// ---- Loading.

// A warp loads the tiles of keys or of values. Where the cache's blocks are whole runs, lanes 0 to 7
// bring a run each as a box. The rest is written by hand: of values, also the zeros outside the context.
template <class T, int D, bool VALUES>
__device__ __forceinline__ void load_context(const AttentionParams &p, const Work &work, Tiles<D> &ring,
                                             const TensorMap &map) {
    using S = Tiling<D>;
    constexpr uint32_t CHUNKS = D / 8, BOX = RUN * S::ROW_BYTES;
    const uint32_t *table = p.block_tables + size_t(work.item.sequence) * p.table_stride;
    const uint32_t lane = threadIdx.x & 31;
    const bool in_runs = p.block_size % RUN == 0;
    // The row of the plane that holds a position.
    const auto row_of = [&](uint32_t position) {
        const uint32_t block = position / p.block_size;
        return (table[block] * p.kv_heads + work.kv_head) * p.block_size + (position - block * p.block_size);
    };
    uint32_t at = work.last;
    for (uint32_t n = 0; n < work.tiles; n++, at -= TILE) {
        const uint32_t start = at + lane * RUN;
        const bool touched = start < work.end && start + RUN > work.first;
        const bool inside = start >= work.first && start + RUN <= work.end;
        const bool boxed = lane < RUNS && in_runs && (VALUES ? inside : touched);
        const uint32_t row = boxed ? row_of(start) : 0;
        const uint32_t boxes = __popc(__ballot_sync(0xffffffffu, boxed));
        uint32_t by_hand = __ballot_sync(0xffffffffu, lane < RUNS && !boxed && (VALUES || touched));
        const uint32_t tile = ring.tile(), full = ring.full();
        ring.wait_empty();
        if (lane == 0) {
            if (by_hand) barrier_expect(full, boxes * BOX);
            else barrier_arrive_expecting(full, boxes * BOX);
        }
        __syncwarp();
        if (boxed) copy_box(tile + lane * BOX, map, row / 8, full);
        if (by_hand) {
            for (; by_hand; by_hand &= by_hand - 1) {
                const uint32_t begin = (__ffs(by_hand) - 1) * RUN;
#pragma unroll 4
                for (uint32_t i = lane; i < RUN * CHUNKS; i += 32) {
                    const uint32_t row = begin + i / CHUNKS, chunk = i % CHUNKS, position = at + row;
                    uint4 x = make_uint4(0, 0, 0, 0);
                    if (position >= work.first && position < work.end) {
                        const T *plane = static_cast<const T *>(VALUES ? p.values : p.keys);
                        x = *reinterpret_cast<const uint4 *>(plane + size_t(row_of(position)) * D + chunk * 8);
                    }
                    store_shared(tile + swizzled<S::ATOMS>(row, chunk), x);
                }
            }
            fence_shared_writes();
            __syncwarp();
            if (lane == 0) barrier_arrive(full);
        }
        ring.turn++;
    }
}

// By the last two warps of the loading warpgroup.
template <class T, int D>
__device__ __forceinline__ void load_queries(const AttentionParams &p, const Work &work, uint32_t queries) {
    using S = Tiling<D>;
    constexpr uint32_t CHUNKS = D / 8, STEP = 64 / CHUNKS;
    const uint32_t group = p.heads / p.kv_heads, rows = work.item.count * group, chunk = threadIdx.x % CHUNKS;
    // Division by `group`, exact while rows and group are at most 256.
    const uint32_t inverse = (65536 + group - 1) / group;
    const size_t stride = size_t(p.heads + 2 * p.kv_heads) * D;
    const T *from = static_cast<const T *>(p.qkv) + work.item.token * stride + work.kv_head * group * D + chunk * 8;
#pragma unroll 4
    for (uint32_t row = (threadIdx.x - 64) / CHUNKS; row < S::ROWS; row += STEP) {
        const bool real = row < rows;
        const uint32_t token = real ? row * inverse >> 16 : 0, head = real ? row - token * group : 0;
        copy_async_16(queries + swizzled<S::ATOMS>(row, chunk), from + token * stride + head * D, real);
    }
    copy_async_commit();
    copy_async_wait<0>();
    fence_shared_writes();
}

// ---- Multiplying.

// A row of the output. The four lanes that share it hold words of two columns, and write whole vectors.
template <class T, int D, class F> __device__ __forceinline__ void store_row(T *to, bool real, F word) {
    const uint32_t lane = threadIdx.x & 31;
    const bool high = lane & 2, odd = lane & 1;
#pragma unroll
    for (int n = 0; n < D / 8; n += 4) {
        // A transpose of 4 x 4 words among 4 lanes.
        const uint32_t w[4] = {word(n), word(n + 1), word(n + 2), word(n + 3)};
        const uint32_t k0 = high ? w[2] : w[0], k1 = high ? w[3] : w[1];
        const uint32_t r0 = __shfl_xor_sync(0xffffffffu, high ? w[0] : w[2], 2);
        const uint32_t r1 = __shfl_xor_sync(0xffffffffu, high ? w[1] : w[3], 2);
        const uint32_t a = odd ? k1 : k0, c = odd ? r1 : r0;
        const uint32_t b = __shfl_xor_sync(0xffffffffu, odd ? k0 : k1, 1);
        const uint32_t d = __shfl_xor_sync(0xffffffffu, odd ? r0 : r1, 1);
        const uint2 near = odd ? make_uint2(b, a) : make_uint2(a, b), far = odd ? make_uint2(d, c) : make_uint2(c, d);
        const uint4 x = high ? make_uint4(far.x, far.y, near.x, near.y) : make_uint4(near.x, near.y, far.x, far.y);
        if (real) *reinterpret_cast<uint4 *>(to + (n + (lane & 3)) * 8) = x;
    }
}

// Variant::score where there is a cap, short: tanh y is 1 - 2 / (1 + e^2y), with an absolute error of about 1e-7.
__device__ __forceinline__ float capped(float dot, const Variant &variant) {
    const float power = fast_exp2(dot * (variant.scale * 2 * LOG2_E / variant.soft_cap));
    return variant.soft_cap * LOG2_E * (1 - __fdividef(2, 1 + power));
}

// The state of the online softmax for the lane's two rows of a warpgroup's 64.
template <class T, int D> struct Rows {
    float acc[D / 2], scores[TILE / 2], best[2], total[2], shrink[2];
    uint32_t weights[TILE / 16][4];

    // Scores of one tile, in the order that wgmma leaves them, become weights.
    __device__ __forceinline__ void soften(float factor) {
        float tile_best[2] = {scores[0], scores[2]}, base[2];
#pragma unroll
        for (int i = 0; i < TILE / 2; i++) tile_best[i >> 1 & 1] = fmaxf(tile_best[i >> 1 & 1], scores[i]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            tile_best[r] = fmaxf(tile_best[r], __shfl_xor_sync(0xffffffffu, tile_best[r], 1));
            tile_best[r] = fmaxf(tile_best[r], __shfl_xor_sync(0xffffffffu, tile_best[r], 2));
            const float now = fmaxf(best[r], tile_best[r] * factor);
            base[r] = finite_or_zero(now);
            shrink[r] = fast_exp2(best[r] - base[r]);
            best[r] = now;
            total[r] *= shrink[r];
        }
#pragma unroll
        for (int i = 0; i < TILE / 2; i++) {
            scores[i] = fast_exp2(fmaf(scores[i], factor, -base[i >> 1 & 1]));
            total[i >> 1 & 1] += scores[i];
        }
    }
    // Weights as the left side of the next product. No product may be under way.
    __device__ __forceinline__ void pack() {
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                weights[k][j] = pack_pair<T>(scores[k * 8 + j * 2], scores[k * 8 + j * 2 + 1]);
    }
    __device__ __forceinline__ void rescale() {
        if (__any_sync(0xffffffffu, shrink[0] != 1.f || shrink[1] != 1.f)) {
#pragma unroll
            for (int i = 0; i < D / 2; i++) acc[i] *= shrink[i >> 1 & 1];
        }
    }
    __device__ __forceinline__ void issue_scores(uint64_t queries, uint64_t keys) {
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            const uint64_t step = (k / 4 * ATOM + k % 4 * 32) >> 4;
            if (k == 0) product<T, false>(scores, queries + step, keys + step);
            else product<T, true>(scores, queries + step, keys + step);
        }
        products_commit();
    }
    // The first time they replace what was in `acc`.
    __device__ __forceinline__ void issue_values(uint64_t values, bool add) {
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
            product_transposed<T>(acc, weights[k], values + (k * 16 * D * 2 >> 4), k > 0 || add);
        products_commit();
    }
};

// One warpgroup's rows of all the block's work. The first scores of the next work are under way
// while results are written.
template <class T, int D>
__device__ __forceinline__ void multiply(const AttentionParams &p, uint32_t num_items, uint32_t warpgroup,
                                         Queries<D> &queries, Tiles<D> &keys, Tiles<D> &values) {
    using S = Tiling<D>;
    const Variant variant(p);
    const uint32_t lane = threadIdx.x & 31, quad = lane >> 2, pair = (lane & 3) * 2;
    const uint32_t group = p.heads / p.kv_heads;
    const uint32_t row = warpgroup * 64 + (threadIdx.x >> 5 & 3) * 16 + quad;
    const float factor = variant.soft_cap > 0.f ? 1.f : variant.scale * LOG2_E;

    Rows<T, D> x;
    const auto issue_scores = [&] {
        products_fence();
        const uint32_t mine = queries.tile() + warpgroup * 64 * S::ROW_BYTES;
        x.issue_scores(describe<S::ATOMS>(mine), describe<S::ATOMS>(keys.tile()));
    };
    const auto issue_values = [&](bool add) {
        products_fence();
        x.issue_values(describe<S::ATOMS>(values.tile()), add);
    };
    const auto write = [&](const Work &work) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = x.total[r], share = 1;
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const uint32_t rows = work.item.count * group, token = row + 8 * r < rows ? (row + 8 * r) / group : 0;
            const uint32_t head = work.kv_head * group + (row + 8 * r - token * group);
            const bool real = row + 8 * r < rows;
            if (p.sinks && real) {
                const float sink = p.sinks[head] * LOG2_E, over = fmaxf(x.best[r], sink);
                share = weight_of(x.best[r], over);
                sum = sum * share + exp2f(sink - over);
            }
            share /= sum;
            T *to = static_cast<T *>(p.out) + (size_t(work.item.token + token) * p.heads + head) * D;
            store_row<T, D>(to, real, [&](int n) {
                return pack_pair<T>(x.acc[n * 4 + r * 2] * share, x.acc[n * 4 + r * 2 + 1] * share);
            });
        }
    };
    Share share(p, num_items);
    Work work;
    if (!share.next(work)) return;
#pragma unroll
    for (int i = 0; i < D / 2; i++) x.acc[i] = 0;
    queries.wait_full();
    keys.wait_full();
    issue_scores();
    for (;;) {
        const uint32_t rows = work.item.count * group, position = work.item.position;
        // Of the lane's two rows.
        const uint32_t tokens[2] = {row < rows ? row / group : 0, row + 8 < rows ? (row + 8) / group : 0};
        const auto mask = [&](uint32_t at) {
            if (variant.soft_cap > 0.f) {
#pragma unroll
                for (int i = 0; i < TILE / 2; i++) x.scores[i] = capped(x.scores[i], variant);
            }
            if (at + TILE > position + 1) {
#pragma unroll
                for (int i = 0; i < TILE / 2; i++) {
                    const int most = int(position + tokens[i >> 1 & 1] - at) - int(pair);
                    if (i / 4 * 8 + (i & 1) > most) x.scores[i] = -INFINITY;
                }
            }
            if (at < variant.first_seen(work.end - 1)) {
#pragma unroll
                for (int i = 0; i < TILE / 2; i++) {
                    const int least = int(variant.first_seen(position + tokens[i >> 1 & 1]) - at) - int(pair);
                    if (i / 4 * 8 + (i & 1) < least) x.scores[i] = -INFINITY;
                }
            }
        };
        x.best[0] = x.best[1] = -INFINITY;
        x.total[0] = x.total[1] = 0;
        products_wait<0>();
        pin(x.scores);
        keys.release();
        if (work.tiles == 1) queries.release();
        mask(work.last);
        x.soften(factor);
        x.pack();
        uint32_t at = work.last;
        for (uint32_t n = 1; n < work.tiles; n++) {
            at -= TILE;
            keys.wait_full();
            named_sync(1 + warpgroup, 256);
            issue_scores();
            values.wait_full();
            issue_values(n > 1);
            named_arrive(1 + (warpgroup + 1) % S::GROUPS, 256);
            products_wait<1>();
            pin(x.scores);
            keys.release();
            if (n + 1 == work.tiles) queries.release();
            mask(at);
            x.soften(factor);
            products_wait<0>();
            pin(x.acc);
            values.release();
            x.rescale();
            x.pack();
        }
        values.wait_full();
        issue_values(work.tiles > 1);
        Work next = work;
        const bool more = share.next(next);
        products_wait<0>();
        pin(x.acc);
        values.release();
        if (!more) break;
        queries.wait_full();
        keys.wait_full();
        issue_scores();
        write(work);
        work = next;
    }
    write(work);
}

template <class T, int D>
__device__ void prefill(const AttentionParams &p, const TensorMap &key_map, const TensorMap &value_map,
                        uint32_t num_items) {
    using S = Tiling<D>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t start = shared_address(shared), barriers = start + S::BARRIERS;
    const uint32_t warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    Tiles<D> keys(start + S::KEYS, barriers), values(start + S::VALUES, barriers + 16 * S::STAGES);
    Queries<D> queries(start, barriers + 32 * S::STAGES);
    let_next_start();
    if (threadIdx.x == 0) {
        keys.init(1, 4 * S::GROUPS);
        values.init(1, 4 * S::GROUPS);
        queries.init(64, 4 * S::GROUPS);
        fence_barrier_init();
    }
    __syncthreads();
    wait_for_inputs();
    if (warpgroup == 0) {
        give_registers<S::LOADER_REGISTERS>();
        const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
        Share share(p, num_items);
        Work work;
        if (warp == 0) {
            while (share.next(work)) load_context<T, D, false>(p, work, keys, key_map);
        } else if (warp == 1) {
            while (share.next(work)) load_context<T, D, true>(p, work, values, value_map);
        } else {
            for (; share.next(work); queries.turn++) {
                queries.wait_empty();
                load_queries<T, D>(p, work, queries.tile());
                barrier_arrive(queries.full());
            }
        }
    } else {
        take_registers<S::REGISTERS>();
        const uint32_t mine = warpgroup - 1;
        if (mine == S::GROUPS - 1) named_arrive(1, 256);
        multiply<T, D>(p, num_items, mine, queries, keys, values);
        if (mine == 0) named_sync(1, 256);
    }
}

#define INSTANCE(name, T, D)                                                                               \
    extern "C" __global__ void __launch_bounds__(Tiling<D>::THREADS, 1)                                    \
        paged_attention_prefill_sm90_##name##_d##D(                                                        \
            const __grid_constant__ AttentionParams p, const __grid_constant__ TensorMap keys,             \
            const __grid_constant__ TensorMap values, uint32_t num_items) {                                \
        prefill<T, D>(p, keys, values, num_items);                                                         \
    }
#define INSTANCES(D) INSTANCE(bf16, bf16, D) INSTANCE(f16, f16, D)
INSTANCES(64)
INSTANCES(128)
#else
// So that no device gets a module without kernels.
extern "C" __global__ void paged_attention_prefill_needs_sm90a() {}
#endif
