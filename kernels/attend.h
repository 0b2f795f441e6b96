/* attend: softmax attention of query rows over a paged cache, whole or over a list of its blocks.
 *   token s of row r: sequence block j = s / block_size, pool block table[r][j], read when s <= position(r), s < n_tokens, and j is in the
 *   row's list
 *   out[r][h] = sum_s w_s * v_scale * v[s],  w = softmax(scale * k_scale * q[r][h] . k[s]),  kv head h / (n_q_heads / n_kv_heads)
 *   lse[r][h] = log sum_s exp(...)             a row that reads nothing gives zeros and -infinity
 *   mass[r][j] = mean over h of the sum of w over the tokens of block j, each w at most 1 (logits beyond the resolution of f32)
 * f32 sums. Logits of any size (running maximum starts at -infinity); a NaN or +infinite one makes its row and head NaN.
 * Pool ids out of range are not read. */
#ifndef TIDE_ATTEND_H
#define TIDE_ATTEND_H
#include <stdint.h>
typedef struct tide_attend_args {
  const void *q;                   /* [n_rows, n_q_heads, head_dim], element [r][h][d] at r*q_row + h*q_head + d */
  const void *k, *v;               /* element [b][t][h][d] at b*block + t*token + h*head + d */
  const int32_t *table;            /* i32 [.., n_blocks] with table_stride (0: one table), or NULL: identity */
  const int32_t *positions;        /* i32 [n_rows], or NULL: first_position + r */
  const int32_t *list;             /* i32 [.., n_list] with list_stride (0: one list), -1 padded; or NULL: all blocks */
  float *out;                      /* f32 [n_rows, n_q_heads, head_dim], or NULL */
  float *lse;                      /* f32 [n_rows, n_q_heads]; required with mass, else may be NULL */
  float *mass;                     /* f32 [n_rows, n_blocks], or NULL */
  int64_t q_row_stride, q_head_stride;
  int64_t k_block_stride, k_token_stride, k_head_stride;
  int64_t v_block_stride, v_token_stride, v_head_stride;
  int64_t table_stride, list_stride;
  float scale, v_scale;            /* scale includes k_scale */
  int32_t q_dtype, kv_dtype;       /* f32, f16, bf16; kv also f8e4m3 */
  int32_t n_rows, n_q_heads, n_kv_heads, head_dim, block_size, n_blocks, n_pool, n_tokens, n_list, first_position;
} tide_attend_args;
#endif
