/* attend_row.h: what every CPU body of attend agrees on: which tokens a row reads. */
#ifndef TIDE_ATTEND_ROW_H
#define TIDE_ATTEND_ROW_H
#include <stdbool.h>
#include "attend.h"

/* Tokens of the row's block j that the row reads, and the pool block that holds them. */
static inline int tokens_of(const tide_attend_args *a, int64_t row, int64_t j, int64_t *pool) {
  int64_t position = a->positions ? a->positions[row] : a->first_position + row;
  int64_t visible = (position + 1 < a->n_tokens ? position + 1 : a->n_tokens) - j * a->block_size;
  if (j < 0 || j >= a->n_blocks || visible <= 0) return 0;
  *pool = a->table ? a->table[row * a->table_stride + j] : j;
  if (*pool < 0 || *pool >= a->n_pool) return 0;
  return visible < a->block_size ? (int)visible : a->block_size;
}

/* mass is wanted of every block, read or not. */
static inline bool in_list(const tide_attend_args *a, int64_t row, int64_t j) {
  if (!a->list) return true;
  for (int i = 0; i < a->n_list; i++)
    if (a->list[row * a->list_stride + i] == j) return true;
  return false;
}

#endif
