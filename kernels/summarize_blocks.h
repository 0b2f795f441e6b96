/* summarize_blocks: for each block b and head h, over its block_size tokens
 *   mean:    y[yb(b)][h][0][d] = bf16( (sum_t x[xb(b)][t][h][d]) / block_size ), f32 sum in token order
 *   minmax:  y[yb(b)][h][0][d] = min_t, y[yb(b)][h][1][d] = max_t; NaN never wins; a dimension of NaN only gives NaN
 * Block ids outside their pool are left out, and so are blocks of x that x_written says hold nothing.
 * Source: design of predictors (mean key; bounds of Quest). */
#ifndef TIDE_SUMMARIZE_BLOCKS_H
#define TIDE_SUMMARIZE_BLOCKS_H
#include <stdint.h>
typedef struct tide_summarize_blocks_args {
  const void *x;                   /* f32, f16 or bf16; [b][t][h][d] at b*x_block + t*x_token + h*x_head + d */
  uint16_t *y;                     /* bf16 [n_y_blocks, n_heads, minmax ? 2 : 1, dim] */
  const int32_t *x_blocks;         /* i32 [n_blocks], or NULL: 0, 1, ... */
  const int32_t *y_blocks;         /* i32 [n_blocks], or NULL: first_y, first_y + 1, ... */
  uint8_t *written;                /* u8 [n_y_blocks], set to 1 for every block done; or NULL */
  const uint8_t *x_written;        /* u8 [n_x_blocks], or NULL: all are */
  int64_t x_block_stride, x_token_stride, x_head_stride;   /* elements */
  int32_t x_dtype, n_blocks, block_size, n_heads, dim, minmax;
  int32_t n_x_blocks, n_y_blocks, first_y, reserved;
} tide_summarize_blocks_args;
#endif
