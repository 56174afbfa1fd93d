// Paged attention for every element type and head width, one warp a query and head, positions one
// after the other. It defines the result on the f32 path and serves what the tensor core kernels
// don't: f32 activations, mixed element types, head widths outside their list.
//
// A block takes an item (a decode item or some query tokens of a chunk) and a head: in decode heads
// count along blockIdx.x, so that the items that are there start before the unused ones.
#include "../include/pagedllm/reduce.cuh"
#include "variant.cuh"

constexpr int MAX_DIM = 256;
constexpr int WARPS = 4;

// Runs positions [begin, end) of one query through the online softmax of one warp.
template <class T, class KV>
__device__ void attend(const AttentionParams &p, const Variant &variant, uint32_t sequence, uint32_t token,
                       uint32_t head, uint32_t begin, uint32_t end, float (&acc)[MAX_DIM / 32], float &best,
                       float &total) {
    const uint32_t lane = threadIdx.x & 31, kv_head = head / (p.heads / p.kv_heads);
    const T *query = static_cast<const T *>(p.qkv) + (size_t(token) * (p.heads + 2 * p.kv_heads) + head) * p.dim;
    const KV *keys = static_cast<const KV *>(p.keys), *values = static_cast<const KV *>(p.values);
    float q[MAX_DIM / 32];
#pragma unroll
    for (int k = 0; k < MAX_DIM / 32; k++) {
        const uint32_t i = k * 32 + lane;
        q[k] = i < p.dim ? to_float(query[i]) : 0.f;
        acc[k] = 0;
    }
    best = -INFINITY;
    total = 0;
    for (uint32_t position = begin; position < end; position++) {
        const uint32_t block = p.block_tables[size_t(sequence) * p.table_stride + position / p.block_size];
        const size_t place =
            ((size_t(block) * p.kv_heads + kv_head) * p.block_size + position % p.block_size) * p.dim;
        float dot = 0;
#pragma unroll
        for (int k = 0; k < MAX_DIM / 32; k++) {
            const uint32_t i = k * 32 + lane;
            if (i < p.dim) dot += q[k] * to_float(keys[place + i]);
        }
        const float score = variant.score(warp_reduce(dot, Sum()));
        const float next = fmaxf(best, score);
        const float shrink = weight_of(best, next), weight = weight_of(score, next);
        total = total * shrink + weight;
#pragma unroll
        for (int k = 0; k < MAX_DIM / 32; k++) {
            const uint32_t i = k * 32 + lane;
            if (i < p.dim) acc[k] = acc[k] * shrink + weight * to_float(values[place + i]);
        }
        best = next;
    }
}

template <class T>
__device__ void finish(const AttentionParams &p, uint32_t token, uint32_t head, float (&acc)[MAX_DIM / 32], float best,
                       float total) {
    const uint32_t lane = threadIdx.x & 31;
    if (p.sinks) {
        const float sink = p.sinks[head] * LOG2_E, next = fmaxf(best, sink);
        const float shrink = weight_of(best, next);
        total = total * shrink + exp2f(sink - next);
#pragma unroll
        for (int k = 0; k < MAX_DIM / 32; k++) acc[k] *= shrink;
    }
    T *out = static_cast<T *>(p.out) + (size_t(token) * p.heads + head) * p.dim;
#pragma unroll
    for (int k = 0; k < MAX_DIM / 32; k++) {
        const uint32_t i = k * 32 + lane;
        if (i < p.dim) out[i] = from_float<T>(acc[k] / total);
    }
}

// The warps of the block share the item's range; the split of an item is the whole context here.
template <class T, class KV> __device__ void decode(const AttentionParams &p) {
    __shared__ float shared_acc[WARPS][MAX_DIM];
    __shared__ float2 shared_stats[WARPS];
    let_next_start();
    wait_for_inputs();
    const DecodeItem item = static_cast<const DecodeItem *>(p.items)[blockIdx.y];
    if (item.splits == 0 || item.split != 0) return;
    const Variant variant(p);
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t first = variant.first_seen(item.length - 1);
    const uint32_t share = (item.length - first + WARPS - 1) / WARPS;
    const uint32_t begin = min(first + warp * share, item.length), end = min(begin + share, item.length);
    float acc[MAX_DIM / 32], best, total;
    attend<T, KV>(p, variant, item.sequence, item.token, blockIdx.x, begin, end, acc, best, total);
#pragma unroll
    for (int k = 0; k < MAX_DIM / 32; k++) shared_acc[warp][k * 32 + lane] = acc[k];
    if (lane == 0) shared_stats[warp] = make_float2(best, total);
    __syncthreads();
    if (warp != 0) return;
    float all_best = -INFINITY, all_total = 0;
    for (int w = 0; w < WARPS; w++) all_best = fmaxf(all_best, shared_stats[w].x);
#pragma unroll
    for (int k = 0; k < MAX_DIM / 32; k++) acc[k] = 0;
    for (int w = 0; w < WARPS; w++) {
        const float factor = weight_of(shared_stats[w].x, all_best);
        all_total += shared_stats[w].y * factor;
#pragma unroll
        for (int k = 0; k < MAX_DIM / 32; k++) acc[k] += shared_acc[w][k * 32 + lane] * factor;
    }
    finish<T>(p, item.token, blockIdx.x, acc, all_best, all_total);
}

template <class T, class KV> __device__ void prefill(const AttentionParams &p) {
    let_next_start();
    wait_for_inputs();
    const PrefillItem item = static_cast<const PrefillItem *>(p.items)[blockIdx.x];
    const Variant variant(p);
    for (uint32_t i = threadIdx.x >> 5; i < item.count; i += WARPS) {
        const uint32_t position = item.position + i;
        float acc[MAX_DIM / 32], best, total;
        attend<T, KV>(p, variant, item.sequence, item.token + i, blockIdx.y, variant.first_seen(position),
                      position + 1, acc, best, total);
        finish<T>(p, item.token + i, blockIdx.y, acc, best, total);
    }
}

#define INSTANCE(name, T, KV)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128)                                                             \
        paged_attention_decode_generic_##name(const __grid_constant__ AttentionParams p) {                        \
        decode<T, KV>(p);                                                                                         \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(128)                                                             \
        paged_attention_prefill_generic_##name(const __grid_constant__ AttentionParams p) {                       \
        prefill<T, KV>(p);                                                                                        \
    }
INSTANCE(bf16_bf16, bf16, bf16)
INSTANCE(bf16_f16, bf16, f16)
INSTANCE(bf16_f32, bf16, float)
INSTANCE(bf16_fp8, bf16, fp8)
INSTANCE(f16_bf16, f16, bf16)
INSTANCE(f16_f16, f16, f16)
INSTANCE(f16_f32, f16, float)
INSTANCE(f16_fp8, f16, fp8)
INSTANCE(f32_bf16, float, bf16)
INSTANCE(f32_f16, float, f16)
INSTANCE(f32_f32, float, float)
INSTANCE(f32_fp8, float, fp8)
