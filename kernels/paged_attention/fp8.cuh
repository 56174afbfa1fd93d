// Caches of e4m3 for the tensor core kernels: 16 numbers at a time, widened on their way into shared
// memory, which loses nothing.
#pragma once
#include "../include/pagedllm/mma.cuh"

__device__ __forceinline__ void store_shared_16(uint32_t to, const uint4 &v) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Two numbers in the low half of `pair`, widened.
template <class T> __device__ __forceinline__ uint32_t widen_pair(uint32_t pair);
template <> __device__ __forceinline__ uint32_t widen_pair<f16>(uint32_t pair) {
    const __half2_raw wide = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
    return uint32_t(wide.x) | uint32_t(wide.y) << 16;
}
template <> __device__ __forceinline__ uint32_t widen_pair<bf16>(uint32_t pair) {
    const uint32_t wide = widen_pair<f16>(pair);
    const float2 both = __half22float2(*reinterpret_cast<const __half2 *>(&wide));
    return pack_pair<bf16>(both.x, both.y);
}

// Writes 16 numbers as T, 32 bytes.
template <class T> __device__ __forceinline__ void store_widened(uint32_t to, const uint4 &v) {
    store_shared_16(to, make_uint4(widen_pair<T>(v.x & 0xffff), widen_pair<T>(v.x >> 16), widen_pair<T>(v.y & 0xffff),
                                   widen_pair<T>(v.y >> 16)));
    store_shared_16(to + 16, make_uint4(widen_pair<T>(v.z & 0xffff), widen_pair<T>(v.z >> 16),
                                        widen_pair<T>(v.w & 0xffff), widen_pair<T>(v.w >> 16)));
}

// Loads `ROWS` positions from `begin` on, by THREADS threads, into rows of ROW bytes: keys, then values.
// Positions outside [first, end) become zeros and are not read.
template <class T, int D, int ROWS, int ROW, int THREADS>
__device__ __forceinline__ void load_tile_fp8(const AttentionParams &p, const uint32_t *table, uint32_t kv_head,
                                              uint32_t thread, uint32_t begin, uint32_t first, uint32_t end,
                                              uint32_t stage) {
    constexpr int CHUNKS = D / 16, COUNT = (ROWS * CHUNKS + THREADS - 1) / THREADS;
    const uint4 *keys = static_cast<const uint4 *>(p.keys), *values = static_cast<const uint4 *>(p.values);
    uint4 key[COUNT], value[COUNT];
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
        const uint32_t index = c * THREADS + thread, position = begin + index / CHUNKS;
        key[c] = value[c] = make_uint4(0, 0, 0, 0);
        if (index < ROWS * CHUNKS && position >= first && position < end) {
            const uint32_t block = table[position / p.block_size];
            const size_t place =
                ((size_t(block) * p.kv_heads + kv_head) * p.block_size + position % p.block_size) * CHUNKS + index % CHUNKS;
            key[c] = keys[place];
            value[c] = values[place];
        }
    }
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
        const uint32_t index = c * THREADS + thread, to = stage + index / CHUNKS * ROW + index % CHUNKS * 32;
        if (index >= ROWS * CHUNKS) continue;
        store_widened<T>(to, key[c]);
        store_widened<T>(to + ROWS * ROW, value[c]);
    }
}
