/* sum: out[p] = the sum of piece p of x, in f32; piece p is x[p * piece] .. x[(p + 1) * piece - 1], as far as n.
 * Nothing reads memory faster: this is what `tide bench` holds read-only kernels against. */
#ifndef TIDE_SUM_H
#define TIDE_SUM_H
#include <stdint.h>
typedef struct tide_sum_args {
  const float *x;                  /* f32 [n], 16-byte aligned */
  float *out;                      /* f32 [n_pieces] */
  int64_t n, piece;                /* elements in all, and in a piece: a multiple of 4 */
  int32_t n_pieces, reserved;
} tide_sum_args;
#endif
