// Element types, 16-byte vectors, and the waits of programmatic dependent launch.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;
typedef __half f16;
typedef __nv_fp8_e4m3 fp8;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(fp8 x) { return float(x); }

template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ f16 from_float<f16>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }
// What is too large becomes the largest number, 448.
template <> __device__ __forceinline__ fp8 from_float<fp8>(float x) { return fp8(x); }

// N elements in one access; N * sizeof(T) is 4, 8 or 16.
template <class T, int N> struct alignas(N * sizeof(T)) Vec {
    T at[N];
};

template <class T, int N> __device__ __forceinline__ Vec<T, N> load_vec(const T *p) {
    return *reinterpret_cast<const Vec<T, N> *>(p);
}
template <class T, int N> __device__ __forceinline__ void store_vec(T *p, const Vec<T, N> &v) {
    *reinterpret_cast<Vec<T, N> *>(p) = v;
}

// Elements of T in 16 bytes.
template <class T> struct Lanes {
    static constexpr int value = 16 / sizeof(T);
};

// Waits until every kernel before this one is done and its writes are seen. Every kernel calls it
// before it touches anything that another kernel writes or reads; weights may be read before.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel start its prologue.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
