/* score_blocks.cuh: what the CUDA bodies of score_blocks share.
 *
 * Grid: x counts groups of rows, y counts parts of the blocks. With mass, a first launch writes logits
 * [n_rows, n_blocks, n_q_heads] to scratch and behind them, per row, part and head, the maximum and the sum of
 * exponentials of the part's logits; the second launch (score_blocks_mass.cu, with as many parts) reads both. The first
 * logit of a block that is not valid is NaN; no logit of a valid one is.
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

__device__ inline float *logits_of(const tide_score_blocks_args &a, int64_t row, int i) {
  return a.scratch + (row * a.n_blocks + i) * a.n_q_heads;
}

__device__ inline softmax *partials_of(const tide_score_blocks_args &a, int64_t row, int part) {
  float *partials = a.scratch + (int64_t)a.n_rows * a.n_q_heads * a.n_blocks;
  return (softmax *)partials + (row * gridDim.y + part) * a.n_q_heads;
}

__device__ inline float logit_of(softmax s) { return fminf(s.high + __logf(s.sum), FLT_MAX); }

/* Token logits: NaN is left out, and infinity held. */
__device__ inline float token_logit(float x) { return x == x ? fminf(x, FLT_MAX) : -INF; }

#endif
