/* score_blocks.cuh: what the CUDA bodies of score_blocks share.
 *
 * Grid: x counts groups of rows, y counts parts of the blocks. With mass, a first launch writes logits
 * [n_rows, n_blocks, padded heads] to scratch and behind them, per row, part and head, the log of the sum of
 * exponentials of the part's logits; the second launch (score_blocks_mass.cu, with as many parts) reads both.
 * The first logit of a block that is not valid is NaN; no logit of a valid one is.
 */
#ifndef TIDE_SCORE_BLOCKS_CUH
#define TIDE_SCORE_BLOCKS_CUH
#include <float.h>
#include "device.cuh"
#include "score_blocks.h"

#define NOT_VALID __int_as_float(0x7fc00000)

/* Number of blocks of a row that may be valid. */
__device__ inline int live_blocks(const tide_score_blocks_args &a, int64_t row) {
  return a.lengths ? max(0, min(a.lengths[row], a.n_blocks)) : a.n_blocks;
}

/* The pool id of an entry below the row's length, or -1. */
__device__ inline int valid_block(const tide_score_blocks_args &a, int64_t row, int i) {
  int64_t id = a.blocks ? a.blocks[row * a.blocks_stride + i] : (int64_t)a.first_block + i;
  return id >= 0 && id < a.n_pool && (!a.written || a.written[id]) ? (int)id : -1;
}

/* Heads are padded so that four of a block's logits are one load. What the padding holds is nobody's. */
__device__ inline int padded_heads(const tide_score_blocks_args &a) {
  return (a.n_q_heads + 3) & ~3;
}

__device__ inline float *logits_of(const tide_score_blocks_args &a, int64_t row, int i) {
  return a.scratch + (row * a.n_blocks + i) * padded_heads(a);
}

__device__ inline float *log_sums_of(const tide_score_blocks_args &a, int64_t row, int part) {
  return a.scratch + ((int64_t)a.n_rows * a.n_blocks + row * gridDim.y + part) * padded_heads(a);
}

/* ---- softmax in the units of logits: ex2 and lg2 are within 2^-22 of the result, or of 1 ---- */

/* exp(x - high), for x up to high or above it by infinity; 0 for NaN and where high is -infinity. */
__device__ inline float share_of(float x, float high) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"((x - high) * 1.44269504f));
  return __saturatef(y);
}

__device__ inline float log_of(softmax s) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(s.sum));
  return fminf(s.high + y * 0.693147181f, FLT_MAX);
}

/* x may be NaN, which adds nothing, and infinity, which is held. */
template <int N> __device__ inline softmax softmax_add(softmax s, const float (&x)[N]) {
  float high = s.high;
#pragma unroll
  for (int i = 0; i < N; i++) high = fmaxf(high, x[i]);
  high = fminf(high, FLT_MAX);
  s = {high, s.sum * share_of(s.high, high)};
#pragma unroll
  for (int i = 0; i < N; i++) s.sum += share_of(x[i], high);
  return s;
}

/* Over groups of WIDTH lanes, each of its lanes STEP apart. */
template <int WIDTH, int STEP = 1> __device__ inline softmax softmax_of_lanes(softmax s) {
  float high = s.high;
#pragma unroll
  for (int step = WIDTH / 2 * STEP; step >= STEP; step /= 2) high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, step));
  s = {high, s.sum * share_of(s.high, high)};
#pragma unroll
  for (int step = WIDTH / 2 * STEP; step >= STEP; step /= 2) s.sum += __shfl_xor_sync(ALL_LANES, s.sum, step);
  return s;
}

__device__ inline float held_logit(float x) {
  return fminf(fmaxf(x, -INF), FLT_MAX);
}

/* The log-sums of this part from its logits, blocks first .. last - 1 of the row, which the CTA's threads
 * wrote. */
template <int N_WARPS> __device__ inline void sum_logits(const tide_score_blocks_args &a, int64_t row, int first, int last) {
  __shared__ softmax states[N_WARPS][WARP];
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int h0 = 0; h0 < a.n_q_heads; h0 += WARP) {
    softmax s = {-INF, 0};
    int h = min(h0 + lane, a.n_q_heads - 1);
    __syncthreads();
#pragma unroll 4
    for (int i = first + warp; i < last; i += N_WARPS) {
      const float *logits = logits_of(a, row, i);
      if (logits[0] == logits[0]) s = softmax_add(s, {logits[h]});
    }
    states[warp][lane] = s;
    __syncthreads();
    if (warp || h0 + lane >= a.n_q_heads) continue;
    for (int w = 1; w < N_WARPS; w++) {
      softmax other = states[w][lane];
      float high = fmaxf(s.high, other.high);
      s = {high, s.sum * share_of(s.high, high) + other.sum * share_of(other.high, high)};
    }
    log_sums_of(a, row, blockIdx.y)[h] = log_of(s);
  }
}

#endif
