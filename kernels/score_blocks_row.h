/* score_blocks_row.h: what every CPU body of score_blocks agrees on: which entries are valid, where the sums lie. */
#ifndef TIDE_SCORE_BLOCKS_ROW_H
#define TIDE_SCORE_BLOCKS_ROW_H
#include "score_blocks.h"

/* The pool id of a row's entry, or -1 when it is not valid. */
static inline int64_t valid_block(const tide_score_blocks_args *a, int64_t row, int64_t i) {
  if (a->lengths && i >= a->lengths[row]) return -1;
  int64_t id = a->blocks ? a->blocks[row * a->blocks_stride + i] : (int64_t)a->first_block + i;
  return id >= 0 && id < a->n_pool && (!a->written || a->written[id]) ? id : -1;
}

/* Scratch of the mass: logits [n_rows, n_q_heads, n_blocks], then their log-sums [n_rows, n_q_heads]. */
static inline float *logits_of(const tide_score_blocks_args *a, int64_t row, int h) {
  return a->scratch + (row * a->n_q_heads + h) * a->n_blocks;
}
static inline float *sums_of(const tide_score_blocks_args *a, int64_t row) {
  return a->scratch + ((int64_t)a->n_rows * a->n_blocks + row) * a->n_q_heads;
}

/* What the vector bodies serve: heads and queries fit their buffers on the stack. */
enum { SCORE_MAX_HEADS = 256, SCORE_MAX_QUERY = 16384 };

#endif
