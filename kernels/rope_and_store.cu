// Norms (where the layer has them) and rotates q and k in place, and stores k and v in the cache.
// blockIdx.x is the token; each warp takes one head after the other. A head is at most 256 wide
// and stays in the registers of its warp.
//
// A cache plane is [blocks, kv_heads, block_size, dim], so the tokens of one head in one block lie
// together. The slot UNUSED marks padding rows, which store nothing.
#include "include/pagedllm/reduce.cuh"
#include "include/pagedllm/types.cuh"

constexpr uint32_t UNUSED = 0xffffffffu;
constexpr int MAX_DIM = 256;

// The cosine and sine of each position and pair, [positions, half].
extern "C" __global__ void rope_table(const float *inv_freq /* [half] */, float2 *table, uint32_t half,
                                      uint32_t positions, float factor) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= half * positions) return;
    float sine, cosine;
    sincosf(float(i / half) * inv_freq[i % half], &sine, &cosine);
    table[i] = make_float2(cosine * factor, sine * factor);
}

template <class T, class KV>
__device__ void rope_and_store(T *qkv /* [T, (heads + 2 kv_heads) dim] */, const uint32_t *positions /* [T] */,
                               const uint32_t *slots /* [T] */, const float2 *table /* [positions, half] */,
                               const float *q_gain /* [dim] or null */, const float *k_gain /* [dim] or null */,
                               KV *keys, KV *values, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t half,
                               uint32_t block_size, float eps) {
    let_next_start();
    wait_for_inputs();
    const uint32_t token = blockIdx.x, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    const uint32_t slot = slots[token];
    const float2 *angles = half ? table + size_t(positions[token]) * half : nullptr;
    for (uint32_t head = threadIdx.x >> 5; head < heads + 2 * kv_heads; head += warps) {
        T *x = qkv + (size_t(token) * (heads + 2 * kv_heads) + head) * dim;
        const bool is_query = head < heads, is_value = head >= heads + kv_heads;
        float kept[MAX_DIM / 32];
#pragma unroll
        for (int k = 0; k < MAX_DIM / 32; k++) {
            const uint32_t i = k * 32 + lane;
            kept[k] = i < dim ? to_float(x[i]) : 0.f;
        }
        const float *gain = is_query ? q_gain : k_gain;
        if (!is_value && gain) {
            float squares = 0;
#pragma unroll
            for (int k = 0; k < MAX_DIM / 32; k++) squares += kept[k] * kept[k];
            const float factor = rsqrtf(warp_reduce(squares, Sum()) / dim + eps);
#pragma unroll
            for (int k = 0; k < MAX_DIM / 32; k++) {
                const uint32_t i = k * 32 + lane;
                if (i < dim) kept[k] *= factor * gain[i];
            }
        }
        if (!is_value && half) {
            // The partner of element i is `half` away: another register of the lane or of the
            // lane that holds it, found by a shuffle for every register pair.
            float turned[MAX_DIM / 32];
#pragma unroll
            for (int k = 0; k < MAX_DIM / 32; k++) {
                turned[k] = kept[k];
                const uint32_t i = k * 32 + lane;
                const uint32_t partner = i < half ? i + half : (i < 2 * half ? i - half : i);
                float other = 0;
#pragma unroll
                for (int from = 0; from < MAX_DIM / 32; from++) {
                    const float candidate = __shfl_sync(0xffffffffu, kept[from], partner & 31);
                    if (from == int(partner >> 5)) other = candidate;
                }
                if (i < half) {
                    const float2 angle = angles[i];
                    turned[k] = kept[k] * angle.x - other * angle.y;
                } else if (i < 2 * half) {
                    const float2 angle = angles[i - half];
                    turned[k] = kept[k] * angle.x + other * angle.y;
                }
            }
#pragma unroll
            for (int k = 0; k < MAX_DIM / 32; k++) kept[k] = turned[k];
        }
        KV *cache = is_value ? values : keys;
        const uint32_t kv_head = is_value ? head - heads - kv_heads : head - heads;
        const size_t place = ((size_t(slot / block_size) * kv_heads + kv_head) * block_size + slot % block_size) * dim;
#pragma unroll
        for (int k = 0; k < MAX_DIM / 32; k++) {
            const uint32_t i = k * 32 + lane;
            if (i < dim) {
                if (!is_value) x[i] = from_float<T>(kept[k]);
                if (!is_query && slot != UNUSED) cache[place + i] = from_float<KV>(kept[k]);
            }
        }
    }
}

#define INSTANCE(name, T, KV)                                                                                      \
    extern "C" __global__ void __launch_bounds__(512) rope_and_store_##name(                                       \
        T *qkv, const uint32_t *positions, const uint32_t *slots, const float2 *table, const float *q_gain,        \
        const float *k_gain, KV *keys, KV *values, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t half, \
        uint32_t block_size, float eps) {                                                                          \
        rope_and_store<T, KV>(qkv, positions, slots, table, q_gain, k_gain, keys, values, heads, kv_heads, dim,    \
                              half, block_size, eps);                                                              \
    }
INSTANCE(bf16_bf16, bf16, bf16)
INSTANCE(bf16_f16, bf16, f16)
INSTANCE(bf16_f32, bf16, float)
INSTANCE(f16_bf16, f16, bf16)
INSTANCE(f16_f16, f16, f16)
INSTANCE(f16_f32, f16, float)
INSTANCE(f32_bf16, float, bf16)
INSTANCE(f32_f16, float, f16)
INSTANCE(f32_f32, float, float)
