// Parts of decode attention that do not depend on how the context is read: the merge of partial results,
// and the token's own query, key and value.
#pragma once
#include "../include/pagedllm/mma.cuh"
#include "variant.cuh"

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
