// What varies between attention layers and does not change the loops: the context that a query
// sees, and what happens to a score. And the common parameters.
#pragma once
#include "../include/pagedllm/plan.h"
#include "../include/pagedllm/types.cuh"

struct AttentionParams {
    const void *qkv;              // [T, (heads + 2 kv_heads) dim]
    void *out;                    // [T, heads dim]
    const void *keys;             // [blocks, kv_heads, block_size, dim]
    const void *values;           // likewise
    const uint32_t *block_tables; // [S, table_stride]
    const void *items;            // DecodeItem or PrefillItem, one a blockIdx.x
    const float *sinks;           // [heads] or null
    float *partial_out;           // [partials, heads, dim]; decode only
    float2 *partial_stats;        // [partials, heads] maximum and sum; decode only
    uint32_t *arrived;            // [S, kv_heads] zeros; decode only
    uint32_t heads, kv_heads, dim, block_size, table_stride;
    uint32_t window; // positions that a query sees, its own included; 0xffffffff sees all
    float scale;
    float soft_cap; // 0 for none
    // For the kernels that rotate and store as well; `half` is dim / 2.
    const float2 *rope;    // [positions, half], cosine and sine; null without rotation
    const uint32_t *slots; // [T] slots of the tokens
    uint32_t decode_stages; // 2 or 3 tiles in the ring of a decode warp
    uint32_t unused;
};

constexpr float LOG2_E = 1.4426950408889634f;

struct Variant {
    float scale, soft_cap;
    uint32_t window;
    __device__ explicit Variant(const AttentionParams &p) : scale(p.scale), soft_cap(p.soft_cap), window(p.window) {}
    // First position that the query at `position` sees.
    __device__ __forceinline__ uint32_t first_seen(uint32_t position) const {
        return position >= window ? position - window + 1 : 0;
    }
    // The score as an exponent of 2.
    __device__ __forceinline__ float score(float dot) const {
        const float x = dot * scale;
        return (soft_cap > 0.f ? soft_cap * tanhf(x / soft_cap) : x) * LOG2_E;
    }
};

// exp2 with exp2(-inf - -inf) = 0.
__device__ __forceinline__ float weight_of(float score, float best) {
    return score == -INFINITY ? 0.f : exp2f(score - best);
}
// exp2 in one instruction; relative error about 2^-22, results below 2^-126 are 0.
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Score minus best, where a best of -inf (nothing seen yet) leaves exp2 of -inf.
__device__ __forceinline__ float finite_or_zero(float best) { return best == -INFINITY ? 0.f : best; }
