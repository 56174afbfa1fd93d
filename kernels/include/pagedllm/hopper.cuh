// What only sm_90a has: products of a warpgroup on matrices in shared memory (wgmma), the tensor
// copies that fill them, and the barriers that tell when. Include it where
// __CUDA_ARCH_FEAT_SM90_ALL is defined.
//
// Matrices lie in atoms of 8 rows of 128 bytes, whose 16-byte chunks are swizzled: chunk c of row r
// is at place c ^ r, as tensor copies write and wgmma reads them. Atoms that share their rows follow
// each other, then come the next 8 rows. Every matrix starts at a multiple of an atom's bytes.
#pragma once
#include "types.cuh"

constexpr uint32_t ATOM = 1024;       // bytes
constexpr uint32_t ATOM_COLUMNS = 64; // of 16-bit elements

// Where a chunk of a matrix with ATOMS atoms across lies, in bytes from its start.
template <int ATOMS> __device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t chunk) {
    return (row / 8 * ATOMS + chunk / 8) * ATOM + row % 8 * 128 + (chunk % 8 ^ row % 8) * 16;
}

// ---- Barriers in shared memory. They complete a phase when all expected arrivals and bytes came.

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// Expects more bytes without arriving.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Makes what barrier_init wrote visible to tensor copies.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Waits until the phase of `parity` is complete. The one before the first counts as complete, with
// parity 1.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
// Makes this thread's writes to shared memory visible to wgmma and to tensor copies, once a barrier
// has passed.
__device__ __forceinline__ void fence_shared_writes() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Barriers of a block by number; 0 is __syncthreads.
__device__ __forceinline__ void named_sync(uint32_t barrier, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(uint32_t barrier, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- Tensor copies.

// What the driver's cuTensorMapEncodeTiled makes.
struct alignas(64) TensorMap {
    uint64_t words[16];
};

// Copies the map's box from rows `8 eights` on; its bytes arrive at `barrier`. The map sees a matrix as columns of
// an atom, rows of an atom, atoms across, atoms down.
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap &map, uint32_t eights, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %2, %2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(0), "r"(eights), "r"(barrier)
                 : "memory");
}

// Copies the map's box from a column and a row on; its bytes arrive at `barrier`.
__device__ __forceinline__ void copy_tile(uint32_t to, const TensorMap &map, uint32_t column, uint32_t row, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

// ---- Clusters of blocks, which reach each other's shared memory.

__device__ __forceinline__ uint32_t cluster_size() {
    uint32_t size;
    asm("mov.u32 %0, %cluster_nctarank;" : "=r"(size));
    return size;
}
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Waits for all threads of the cluster, and makes what they wrote to shared memory visible.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::: "memory");
}
// What lies at a place of this block's shared memory in another block of the cluster.
__device__ __forceinline__ float4 load_cluster(uint32_t at, uint32_t rank) {
    float4 x;
    asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %4, %5;"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(at), "r"(rank)
                 : "memory");
    return x;
}

// ---- Registers of a warpgroup.

template <int N> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- Products of a warpgroup: 64 rows, N columns, 16 deep. Issued between fence and commit; the registers
// belong to the product until it was waited for.

// Names a matrix with ATOMS atoms across.
template <int ATOMS> __device__ __forceinline__ uint64_t describe(uint32_t address) {
    constexpr uint64_t SWIZZLED_128 = uint64_t(1) << 62;
    constexpr uint64_t DOWN = uint64_t(ATOMS * ATOM >> 4) << 32, ACROSS = uint64_t(ATOM >> 4) << 16;
    return SWIZZLED_128 | DOWN | ACROSS | (address & 0x3ffff) >> 4;
}
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most N groups are under way.
template <int N> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Keeps the compiler from moving uses of the registers across this point.
template <int N> __device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}

// clang-format off
#define OUT_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define OUT_32(d, i) OUT_8(d, i), OUT_8(d, i + 8), OUT_8(d, i + 16), OUT_8(d, i + 24)
#define FIRST_8(d, i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3]), "=f"(d[i + 4]), "=f"(d[i + 5]), "=f"(d[i + 6]), "=f"(d[i + 7])
#define FIRST_32(d, i) FIRST_8(d, i), FIRST_8(d, i + 8), FIRST_8(d, i + 16), FIRST_8(d, i + 24)
#define NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES_16 NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64 NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// d (+)= a . b^T of two matrices in shared memory whose rows are summed along.
template <class T, bool ADD> __device__ __forceinline__ void product(float (&d)[64], uint64_t a, uint64_t b);
// d += a . b, or d = a . b, of registers and a matrix in shared memory whose rows are summed over.
template <class T> __device__ __forceinline__ void product_transposed(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add);
template <class T> __device__ __forceinline__ void product_transposed(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool add);

// d += a . b^T of two matrices in shared memory whose rows are summed along; b has 2 rows for each register.
template <class T> __device__ __forceinline__ void product_of_rows(float (&d)[8], uint64_t a, uint64_t b);
template <class T> __device__ __forceinline__ void product_of_rows(float (&d)[16], uint64_t a, uint64_t b);

#define PRODUCTS(T, NAME)                                                                                         \
    template <> __device__ __forceinline__ void product_of_rows<T>(float (&d)[8], uint64_t a, uint64_t b) {      \
        asm volatile("{ .reg .pred add; setp.eq.b32 add, 0, 0;"                                                   \
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32." NAME "." NAME                                  \
                     " {" NAMES_8 "}, %8, %9, add, 1, 1, 0, 0; }" : OUT_8(d, 0) : "l"(a), "l"(b)); \
    }                                                                                                             \
    template <> __device__ __forceinline__ void product_of_rows<T>(float (&d)[16], uint64_t a, uint64_t b) {      \
        asm volatile("{ .reg .pred add; setp.eq.b32 add, 0, 0;"                                                   \
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32." NAME "." NAME                                  \
                     " {" NAMES_16 "}, %16, %17, add, 1, 1, 0, 0; }" : OUT_8(d, 0), OUT_8(d, 8) : "l"(a), "l"(b)); \
    }                                                                                                             \
    template <> __device__ __forceinline__ void product<T, false>(float (&d)[64], uint64_t a, uint64_t b) {        \
        asm volatile("{ .reg .pred add; setp.ne.b32 add, 0, 0;"                                                   \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME                                 \
                     " {" NAMES_64 "}, %64, %65, add, 1, 1, 0, 0; }" : FIRST_32(d, 0), FIRST_32(d, 32) : "l"(a), "l"(b)); \
    }                                                                                                             \
    template <> __device__ __forceinline__ void product<T, true>(float (&d)[64], uint64_t a, uint64_t b) {         \
        asm volatile("{ .reg .pred add; setp.eq.b32 add, 0, 0;"                                                   \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME                                 \
                     " {" NAMES_64 "}, %64, %65, add, 1, 1, 0, 0; }" : OUT_32(d, 0), OUT_32(d, 32) : "l"(a), "l"(b)); \
    }                                                                                                             \
    template <> __device__ __forceinline__ void product_transposed<T>(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool add) { \
        asm volatile("{ .reg .pred add; setp.ne.b32 add, %69, 0;"                                                 \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME                                 \
                     " {" NAMES_64 "}, {%64,%65,%66,%67}, %68, add, 1, 1, 1; }" : OUT_32(d, 0), OUT_32(d, 32)     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));                                       \
    }                                                                                                             \
    template <> __device__ __forceinline__ void product_transposed<T>(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add) { \
        asm volatile("{ .reg .pred add; setp.ne.b32 add, %37, 0;"                                                 \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME                                  \
                     " {" NAMES_32 "}, {%32,%33,%34,%35}, %36, add, 1, 1, 1; }" : OUT_32(d, 0)                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));                                       \
    }
PRODUCTS(bf16, "bf16")
PRODUCTS(f16, "f16")
#undef PRODUCTS
#undef NAMES_64
#undef NAMES_32
#undef NAMES_16
#undef NAMES_8
#undef OUT_32
#undef OUT_8
#undef FIRST_32
#undef FIRST_8
// clang-format on
