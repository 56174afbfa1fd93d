// Moving data without arithmetic: rows by index, KV blocks, and the step's input from the area
// where the host's copy lands to the addresses that the other kernels know.
#include "include/pagedllm/types.cuh"
#include "include/pagedllm/plan.h"

// out[r] = x[rows[r]]; a row is `words` 16-byte words. One block a row.
extern "C" __global__ void select_rows(const uint4 *x, const uint32_t *rows /* [R] */, uint4 *out /* [R, words] */,
                                       uint32_t words) {
    let_next_start();
    wait_for_inputs();
    const uint4 *from = x + size_t(rows[blockIdx.x]) * words;
    uint4 *to = out + size_t(blockIdx.x) * words;
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}

// Copies whole blocks in every plane (keys and values of every layer). blockIdx.x is the plane,
// blockIdx.y the copy. No target of one launch is a source or target of another copy in it.
extern "C" __global__ void copy_blocks(uint4 *cache /* [planes, plane_words] */,
                                       const uint2 *copies /* [copies] source, target */, uint64_t plane_words,
                                       uint32_t block_words) {
    wait_for_inputs();
    const uint2 copy = copies[blockIdx.y];
    uint4 *plane = cache + size_t(blockIdx.x) * plane_words;
    const uint4 *from = plane + size_t(copy.x) * block_words;
    uint4 *to = plane + size_t(copy.y) * block_words;
    for (uint32_t i = threadIdx.x; i < block_words; i += blockDim.x) to[i] = from[i];
}

// Distributes the step input. blockIdx.y is the segment; the threads of the blocks in x share it.
// Token ids with the high bit name a row of the previous sampling and are resolved here.
extern "C" __global__ void unpack_step(const uint32_t *landing, const uint32_t *sampled /* [rows] */) {
    wait_for_inputs();
    const Segment segment = reinterpret_cast<const Segment *>(landing)[blockIdx.y];
    uint32_t *to = reinterpret_cast<uint32_t *>(segment.target);
    const uint32_t count = segment.rows * segment.width;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const uint32_t row = i / segment.width, col = i % segment.width;
        uint32_t word = landing[segment.source + i];
        if (segment.kind == SEGMENT_TOKENS && (word & SAMPLED_BY)) word = sampled[word & ~SAMPLED_BY];
        to[size_t(row) * segment.target_stride + col] = word;
    }
}

// Fills with pseudo-random numbers in (-scale, scale), the same for the same seed.
template <class T> __device__ void fill_random(T *out, uint64_t count, uint32_t seed, float scale) {
    for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < count; i += uint64_t(gridDim.x) * blockDim.x) {
        uint32_t h = uint32_t(i) * 2654435761u ^ uint32_t(i >> 32) * 40503u ^ seed * 2246822519u;
        h = (h ^ (h >> 15)) * 2246822519u;
        h = (h ^ (h >> 13)) * 3266489917u;
        h ^= h >> 16;
        out[i] = from_float<T>((float(h >> 8) * (2.f / 16777216.f) - 1.f) * scale);
    }
}
extern "C" __global__ void fill_random_bf16(bf16 *out, uint64_t count, uint32_t seed, float scale) {
    fill_random(out, count, seed, scale);
}
extern "C" __global__ void fill_random_f16(f16 *out, uint64_t count, uint32_t seed, float scale) {
    fill_random(out, count, seed, scale);
}
extern "C" __global__ void fill_random_f32(float *out, uint64_t count, uint32_t seed, float scale) {
    fill_random(out, count, seed, scale);
}
