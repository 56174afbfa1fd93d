// Sums and maxima over a warp and over a block of at most 1024 threads.
#pragma once
#include <stdint.h>

struct Sum {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct Max {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a > b ? a : b; }
};

template <class T, class Op> __device__ __forceinline__ T warp_reduce(T x, Op op) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) x = op(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// The result reaches every thread. `scratch` has 32 places; it may be reused after the call.
template <class T, class Op>
__device__ __forceinline__ T block_reduce(T x, Op op, T empty, T *scratch) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = (blockDim.x + 31) >> 5;
    x = warp_reduce(x, op);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_reduce(lane < warps ? scratch[lane] : empty, op);
    __syncthreads();
    return x;
}
