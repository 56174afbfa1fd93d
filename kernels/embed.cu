// Token embeddings: out[t] = table[token_ids[t]]. One block a token, 16 bytes a thread and turn.
// Rows past the real tokens of a padded step hold token 0.
#include "include/pagedllm/types.cuh"

template <class T>
__device__ void embed(const T *table /* [V, cols] */, const uint32_t *token_ids /* [T] */, T *out /* [T, cols] */,
                      uint32_t cols, uint32_t vocab_size) {
    constexpr int N = Lanes<T>::value;
    let_next_start();
    wait_for_inputs();
    const uint32_t token = min(token_ids[blockIdx.x], vocab_size - 1);
    const T *from = table + size_t(token) * cols;
    T *to = out + size_t(blockIdx.x) * cols;
    for (uint32_t i = threadIdx.x * N; i < cols; i += blockDim.x * N) store_vec<T, N>(to + i, load_vec<T, N>(from + i));
}

#define INSTANCE(name, T)                                                                                    \
    extern "C" __global__ void embed_##name(const T *table, const uint32_t *token_ids, T *out, uint32_t cols, \
                                            uint32_t vocab_size) {                                           \
        embed<T>(table, token_ids, out, cols, vocab_size);                                                   \
    }
INSTANCE(bf16, bf16)
INSTANCE(f16, f16)
INSTANCE(f32, float)
