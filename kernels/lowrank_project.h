/* lowrank_project: for each block b, token t, head h
 *   y[yb(b)][h][t][j] = bf16( sum_d x[xb(b)][t][h][d] * p[m(h)][d][j]  -  bias[m(h)][j] ),   m(h) = h / (n_heads / n_maps)
 * in f32, fused multiply-add over d in order. p NULL is the identity (rank == head_dim). Rows of queries are blocks of one
 * token. Block ids outside their pool are left out. Source: spec 2.5. */
#ifndef TIDE_LOWRANK_PROJECT_H
#define TIDE_LOWRANK_PROJECT_H
#include <stdint.h>
typedef struct tide_lowrank_project_args {
  const void *x;                   /* f32, f16 or bf16; element [b][t][h][d] at b*x_block + t*x_token + h*x_head + d */
  const uint16_t *p;               /* bf16 [n_maps, head_dim, rank], or NULL */
  const float *bias;               /* f32 [n_maps, rank], or NULL */
  uint16_t *y;                     /* bf16 [n_y_blocks, n_heads, block_size, rank] */
  const int32_t *x_blocks;         /* i32 [n_blocks], or NULL: 0, 1, ... */
  const int32_t *y_blocks;         /* i32 [n_blocks], or NULL: first_y, first_y + 1, ... */
  uint8_t *written;                /* u8 [n_y_blocks], set to 1 for every block done; or NULL */
  int64_t x_block_stride, x_token_stride, x_head_stride;   /* elements */
  int32_t x_dtype, n_blocks, block_size, n_heads, n_maps, head_dim, rank;
  int32_t n_x_blocks, n_y_blocks, first_y;
} tide_lowrank_project_args;
#endif
