/* device.cuh: what the CUDA bodies share: stored dtypes, wide loads, sums over a warp and over a block, online softmax.
 *
 * A body is  extern "C" __global__ void NAME(const __grid_constant__ tide_NAME_args a).  Every reduction here has a
 * fixed order, so equal inputs give equal bits.
 */
#ifndef TIDE_DEVICE_CUH
#define TIDE_DEVICE_CUH
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "kernel.h"

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu
#define INF __int_as_float(0x7f800000)

/* ---- stored dtypes ---- */

struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
struct f8 { uint8_t bits; };

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(bf16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
__device__ inline float to_f32(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
/* The bits of e4m3 are those of an f16 256 times smaller. */
__device__ inline float to_f32(f8 x) {
  float y = 256 * to_f32(f16{(uint16_t)((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7)});
  return (x.bits & 0x7f) == 0x7f ? __int_as_float(0x7fc00000) : y;
}

/* Nearest even; NaN, overflow and saturation as in numeric.h, bit for bit. */
__device__ inline bf16 f32_to_bf16(float x) {
  uint32_t u = __float_as_uint(x);
  return {(uint16_t)(x != x ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
__device__ inline f16 f32_to_f16(float x) {
  uint16_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return {(uint16_t)(x != x ? (__float_as_uint(x) >> 16 & 0x8000) | 0x7e00 : y)};
}
__device__ inline f8 f32_to_f8(float x) {
  uint32_t sign = __float_as_uint(x) >> 24 & 0x80, u = __float_as_uint(x) & 0x7fffffffu;
  if (x != x) return {0x7f};
  if (u >= 0x43e80000u) return {(uint8_t)(sign | 0x7e)};
  if (u < 0x3c800000u) return {(uint8_t)(sign | (uint32_t)__float2int_rn(__uint_as_float(u) * 0x1p9f))};
  uint32_t rounded = (u + 0x7ffff + (u >> 20 & 1) - 0x3c000000u) >> 20;
  return {(uint8_t)(sign | (rounded > 0x7e ? 0x7e : rounded))};
}

__device__ inline float load_f32(const void *data, int32_t dtype, int64_t i) {
  switch (dtype) {
    case DT_F32: return ((const float *)data)[i];
    case DT_F16: return to_f32(((const f16 *)data)[i]);
    case DT_BF16: return to_f32(((const bf16 *)data)[i]);
    case DT_F8E4M3: return to_f32(((const f8 *)data)[i]);
    default: return 0;
  }
}

/* ---- wide loads ---- */

template <int BYTES> struct word_of { typedef uint4 type; };
template <> struct word_of<1> { typedef uint8_t type; };
template <> struct word_of<2> { typedef uint16_t type; };
template <> struct word_of<4> { typedef uint32_t type; };
template <> struct word_of<8> { typedef uint2 type; };

/* N consecutive elements in registers, fetched by one load, or by 16-byte loads. p is aligned to the smaller of its
 * bytes and 16; what it points to is not written while the kernel runs. */
template <class T, int N> struct pack {
  typedef typename word_of<N * sizeof(T)>::type word;
  static constexpr int N_WORDS = N * sizeof(T) / sizeof(word);
  word words[N_WORDS];

  __device__ void load(const T *p) {
#pragma unroll
    for (int i = 0; i < N_WORDS; i++) words[i] = __ldg((const word *)p + i);
  }
  __device__ void unpack(float (&out)[N]) const {
    T x[N];
    memcpy(x, words, sizeof x);
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = to_f32(x[i]);
  }
};

template <class T, int N> __device__ inline void load_f32s(const T *p, float (&out)[N]) {
  pack<T, N> v;
  v.load(p);
  v.unpack(out);
}

/* N consecutive elements to p, aligned likewise. */
template <class T, int N> __device__ inline void store_all(T *p, const T (&x)[N]) {
  pack<T, N> v;
  memcpy(v.words, x, sizeof v.words);
#pragma unroll
  for (int i = 0; i < v.N_WORDS; i++) ((typename pack<T, N>::word *)p)[i] = v.words[i];
}

/* ---- reductions: every lane, or every thread, gets the result ---- */

template <int WIDTH = WARP> __device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = WIDTH / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
  return x;
}

template <int WIDTH = WARP> __device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = WIDTH / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
  return x;
}

/* The sum over a block of at most 1024 threads, a multiple of 32; shared holds 32 floats. */
__device__ inline float block_sum(float x, float *shared) {
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
  x = warp_sum(x);
  __syncthreads();
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return warp_sum(lane < n_warps ? shared[lane] : 0);
}

/* ---- online softmax: the running maximum, and the sum of exp(x - high) ---- */

struct softmax {
  float high, sum;
};

/* exp(x - high), 0 where nothing was seen yet. */
__device__ inline float exp_below(float x, float high) { return x == -INF ? 0 : __expf(x - high); }

__device__ inline softmax softmax_merge(softmax a, softmax b) {
  float high = fmaxf(a.high, b.high);
  return {high, a.sum * exp_below(a.high, high) + b.sum * exp_below(b.high, high)};
}

/* ---- overlap of launches (kernel_launch.overlaps) ---- */

/* Before the first access to memory that an earlier kernel writes, or reads where this one writes. */
__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel may begin; it still waits for this one's end before it reads. */
__device__ inline void let_successor_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#endif
