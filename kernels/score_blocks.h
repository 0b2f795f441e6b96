/* score_blocks: how much row r would read of each of its blocks, from low-rank keys.
 *   pool id     g(r, i) = blocks[r][i], or first_block + i
 *   estimate    e(r, h, g, t) = sum_j q[r][h][j] * keys[g][h / group][t][j]               group = n_q_heads / n_kv_heads
 *               minmax: e(r, h, g) = sum_j max(q_j * min_j, q_j * max_j), entry 0 the minima, entry 1 the maxima
 *   max         score = max over h, t of e, start -infinity, strictly greater (NaN never wins); no scale
 *   mass        logit(r, h, i) = log sum_t exp(scale * e); NaN terms are left out, logits held within +-FLT_MAX
 *               score = mean over h of exp(logit(r, h, i) - log sum_i' exp(logit(r, h, i'))), i' over the row's valid blocks
 * An entry is valid when i < lengths[r], 0 <= g < n_pool, and written[g]; any other scores -infinity and is not read.
 * f32 throughout. Source: spec 2.5; the mass: design of predictors. */
#ifndef TIDE_SCORE_BLOCKS_H
#define TIDE_SCORE_BLOCKS_H
#include <stdint.h>
typedef struct tide_score_blocks_args {
  const uint16_t *q;               /* bf16 [n_rows, n_q_heads, rank] */
  const uint16_t *keys;            /* bf16 [n_pool, n_kv_heads, n_entries, rank] */
  const uint8_t *written;          /* u8 [n_pool], or NULL: all are */
  const int32_t *blocks;           /* i32 [n_rows, n_blocks] with blocks_stride (0: one list), or NULL */
  const int32_t *lengths;          /* i32 [n_rows], or NULL: n_blocks */
  float *scores;                   /* f32 [n_rows, n_blocks] with scores_stride */
  float *scratch;                  /* f32, mass only: logits [n_rows, n_q_heads, n_blocks] and partial sums after them */
  int64_t blocks_stride, scores_stride;   /* elements from row to row */
  float scale;                     /* mass: from estimate to logit */
  int32_t n_rows, n_q_heads, n_kv_heads, rank, n_entries, n_pool, n_blocks, first_block;
  int32_t minmax, mass, reserved;
} tide_score_blocks_args;
#endif
