// Norms (where the layer has them) and rotates q and k in place, and stores k and v in the cache.
// blockIdx.x is the token; each warp takes one head, and blockIdx.y continues over the heads. A
// head is at most 256 wide and even; a lane holds up to four pairs of elements that turn together.
//
// A cache plane is [blocks, kv_heads, block_size, dim], so the tokens of one head in one block lie
// together. The slot UNUSED marks padding rows, which store nothing.
#include "include/pagedllm/reduce.cuh"
#include "include/pagedllm/types.cuh"

constexpr uint32_t UNUSED = 0xffffffffu;
constexpr int PAIRS = 4; // of a lane

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
    const uint32_t token = blockIdx.x, lane = threadIdx.x & 31;
    const uint32_t head = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    let_next_start();
    wait_for_inputs();
    if (head >= heads + 2 * kv_heads) return;
    const uint32_t slot = slots[token], position = positions[token];
    T *x = qkv + (size_t(token) * (heads + 2 * kv_heads) + head) * dim;
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;

    // Pair p < half is (p, p + half); what does not turn is paired with its neighbour.
    float first[PAIRS], second[PAIRS];
    uint32_t at[PAIRS], other[PAIRS];
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        const uint32_t pair = k * 32 + lane;
        at[k] = pair < half ? pair : pair * 2;
        other[k] = pair < half ? pair + half : pair * 2 + 1;
        const bool real = pair < dim / 2;
        first[k] = real ? to_float(x[at[k]]) : 0.f;
        second[k] = real ? to_float(x[other[k]]) : 0.f;
    }
    const float *gain = is_query ? q_gain : k_gain;
    if (!is_value && gain) {
        float squares = 0;
#pragma unroll
        for (int k = 0; k < PAIRS; k++) squares += first[k] * first[k] + second[k] * second[k];
        const float factor = rsqrtf(warp_reduce(squares, Sum()) / dim + eps);
#pragma unroll
        for (int k = 0; k < PAIRS; k++) {
            if (k * 32 + lane >= dim / 2) continue;
            first[k] *= factor * gain[at[k]];
            second[k] *= factor * gain[other[k]];
        }
    }
    if (!is_value) {
        const float2 *angles = table + size_t(position) * half;
#pragma unroll
        for (int k = 0; k < PAIRS; k++) {
            const uint32_t pair = k * 32 + lane;
            if (pair >= half) continue;
            const float2 angle = angles[pair];
            const float a = first[k], b = second[k];
            first[k] = a * angle.x - b * angle.y;
            second[k] = b * angle.x + a * angle.y;
        }
    }
    KV *cache = is_value ? values : keys;
    const uint32_t kv_head = is_value ? head - heads - kv_heads : head - heads;
    const size_t place = ((size_t(slot / block_size) * kv_heads + kv_head) * block_size + slot % block_size) * dim;
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        if (k * 32 + lane >= dim / 2) continue;
        if (!is_value) {
            x[at[k]] = from_float<T>(first[k]);
            x[other[k]] = from_float<T>(second[k]);
        }
        if (!is_query && slot != UNUSED) {
            cache[place + at[k]] = from_float<KV>(first[k]);
            cache[place + other[k]] = from_float<KV>(second[k]);
        }
    }
}

// The same for heads that turn whole and have no norms, in a cache of the same type: a thread takes
// 8 neighbours of the first half and their partners in the second. blockIdx.y continues over the
// threads of a token; `dim` is a multiple of 16.
template <class T>
__device__ void rope_and_store_whole(T *qkv, const uint32_t *positions, const uint32_t *slots, const float2 *table,
                                     T *keys, T *values, uint32_t heads, uint32_t kv_heads, uint32_t dim,
                                     uint32_t block_size) {
    constexpr int N = 8;
    const uint32_t token = blockIdx.x, half = dim / 2, threads = half / N;
    const uint32_t index = blockIdx.y * blockDim.x + threadIdx.x, head = index / threads, at = index % threads * N;
    let_next_start();
    wait_for_inputs();
    if (head >= heads + 2 * kv_heads) return;
    T *x = qkv + (size_t(token) * (heads + 2 * kv_heads) + head) * dim + at;
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    Vec<T, N> first = load_vec<T, N>(x), second = load_vec<T, N>(x + half);
    if (!is_value) {
        const float2 *angles = table + size_t(positions[token]) * half + at;
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            const Vec<float, 4> pair = load_vec<float, 4>(reinterpret_cast<const float *>(angles + j));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float a = to_float(first.at[j + i]), b = to_float(second.at[j + i]);
                const float cosine = pair.at[i * 2], sine = pair.at[i * 2 + 1];
                first.at[j + i] = from_float<T>(a * cosine - b * sine);
                second.at[j + i] = from_float<T>(b * cosine + a * sine);
            }
        }
        store_vec<T, N>(x, first);
        store_vec<T, N>(x + half, second);
    }
    const uint32_t slot = slots[token];
    if (is_query || slot == UNUSED) return;
    const uint32_t kv_head = is_value ? head - heads - kv_heads : head - heads;
    T *cache = (is_value ? values : keys) +
               ((size_t(slot / block_size) * kv_heads + kv_head) * block_size + slot % block_size) * dim + at;
    store_vec<T, N>(cache, first);
    store_vec<T, N>(cache + half, second);
}

#define WHOLE(name, T)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) rope_and_store_whole_##name(                                 \
        T *qkv, const uint32_t *positions, const uint32_t *slots, const float2 *table, T *keys, T *values,         \
        uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t block_size) {                                    \
        rope_and_store_whole<T>(qkv, positions, slots, table, keys, values, heads, kv_heads, dim, block_size);     \
    }
WHOLE(bf16, bf16)
WHOLE(f16, f16)

#define INSTANCE(name, T, KV)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) rope_and_store_##name(                                       \
        T *qkv, const uint32_t *positions, const uint32_t *slots, const float2 *table, const float *q_gain,        \
        const float *k_gain, KV *keys, KV *values, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t half, \
        uint32_t block_size, float eps) {                                                                          \
        rope_and_store<T, KV>(qkv, positions, slots, table, q_gain, k_gain, keys, values, heads, kv_heads, dim,    \
                              half, block_size, eps);                                                              \
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
