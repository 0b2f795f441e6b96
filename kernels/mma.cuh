/* mma.cuh: 16 x 8 products of bf16 on the tensor cores, operands straight from rows in memory.
 *
 * A product sums over k, so any order of k serves that is the same in both operands. Here four lanes share a
 * row, and a lane takes 16 consecutive bytes of every 64: one wide load fills the fragments of two k-steps,
 * and a warp reads eight rows of 64 bytes at once. Lane l holds row l / 4 (and l / 4 + 8), columns 2 (l % 4)
 * and + 1 of a result.
 */
#ifndef TIDE_MMA_CUH
#define TIDE_MMA_CUH
#include "device.cuh"

/* A lane's share of a row of DIM values, a multiple of 16. K-step s takes words 2 s and 2 s + 1. */
template <int DIM> struct row_share {
  static constexpr int N_WIDE = DIM / 32, N_WORDS = DIM / 8;
  uint32_t words[N_WORDS];

  /* row is aligned to 16 bytes; Load fetches a uint4 or uint2. */
  template <class Load> __device__ void take(const uint16_t *row, int quarter, Load load) {
#pragma unroll
    for (int i = 0; i < N_WIDE; i++) {
      uint4 v = load((const uint4 *)row + 4 * i + quarter);
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
    if (DIM % 32) {
      uint2 v = load((const uint2 *)(row + 32 * N_WIDE) + quarter);
      words[4 * N_WIDE] = v.x, words[4 * N_WIDE + 1] = v.y;
    }
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < N_WORDS; i++) words[i] = 0;
  }
};

/* Where value d of a row stands in the order of k. */
__device__ inline int k_position(int d) {
  return (d & ~31) | (d & 4) << 2 | (d & 2) << 2 | (d & 24) >> 2 | (d & 1);
}

/* Read once, by one warp: no place in the first cache. */
struct load_streaming {
  __device__ uint4 operator()(const uint4 *p) const {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
  }
  __device__ uint2 operator()(const uint2 *p) const {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
  }
};

struct load_plain {
  template <class T> __device__ T operator()(const T *p) const { return *p; }
};

/* c += a b: a is 16 x 16 (words of rows l / 4 and l / 4 + 8 alternate), b is 16 x 8. */
__device__ inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline uint32_t shared_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ inline uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

/* 16 bytes on their way to shared memory, or zeros; those of a thread since its last commit arrive as one
 * group. */
__device__ inline void copy_async(uint32_t shared, const void *global, bool zeros = false) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(zeros ? 0 : 16)
               : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All but the last N_LEFT groups of this thread have arrived, for this thread. */
template <int N_LEFT> __device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N_LEFT) : "memory");
}

/* Four 8 x 8 matrices, transposed; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ inline void load_matrices_transposed(uint32_t (&m)[4], const void *shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(shared_row))
               : "memory");
}

/* Nearest even, both at once; NaN stays NaN. */
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

#endif
