/* summarize_blocks_simd.c: summarize_blocks with dimensions in the lanes; sums in token order, as the reference. */
#include "simd.h"
#include "summarize_blocks.h"

ALWAYS_INLINE vf load(const tide_summarize_blocks_args *a, int32_t dtype, int64_t at, int n) {
  return n == LANES ? vf_load_as(a->x, dtype, at) : vf_load_some(a->x, dtype, at, n);
}

ALWAYS_INLINE void mean_of(const tide_summarize_blocks_args *a, int32_t dtype, int64_t at, uint16_t *y, int n) {
  vf sum = vf_set(0);
  for (int t = 0; t < a->block_size; t++) sum = sum + load(a, dtype, at + t * a->x_token_stride, n);
  vf_store_bf16(y, sum / vf_set((float)a->block_size), n);
}

/* vf_min(x, low) is low when x is NaN: bounds start at the infinities, and NaN where no number was seen. */
ALWAYS_INLINE void bounds_of(const tide_summarize_blocks_args *a, int32_t dtype, int64_t at, uint16_t *y, int n) {
  vf low = vf_set(INFINITY), high = vf_set(-INFINITY), some = vf_set(NAN);
  for (int t = 0; t < a->block_size; t++) {
    vf x = load(a, dtype, at + t * a->x_token_stride, n);
    low = vf_min(x, low);
    high = vf_max(x, high);
    some = vf_number_or(some, x);
  }
  vf_store_bf16(y, vf_where_equal(some, some, low, vf_set(NAN)), n);
  vf_store_bf16(y + a->dim, vf_where_equal(some, some, high, vf_set(NAN)), n);
}

ALWAYS_INLINE void summarize_head(const tide_summarize_blocks_args *a, int32_t dtype, int64_t at, uint16_t *y) {
  for (int d = 0; d < a->dim; d += LANES) {
    int n = a->dim - d < LANES ? a->dim - d : LANES;
    if (a->minmax) bounds_of(a, dtype, at + d, y + d, n);
    else mean_of(a, dtype, at + d, y + d, n);
  }
}

void SIMD_NAME(summarize_blocks)(const void *args, int phase, int64_t first, int64_t last) {
  const tide_summarize_blocks_args *a = args;
  (void)phase;
  for (int64_t b = first; b < last; b++) {
    int64_t xb = a->x_blocks ? a->x_blocks[b] : b, yb = a->y_blocks ? a->y_blocks[b] : a->first_y + b;
    if (xb < 0 || xb >= a->n_x_blocks || yb < 0 || yb >= a->n_y_blocks) continue;
    if (a->x_written && !a->x_written[xb]) continue;
    for (int h = 0; h < a->n_heads; h++) {
      int64_t at = xb * a->x_block_stride + h * a->x_head_stride;
      uint16_t *y = a->y + (yb * a->n_heads + h) * (a->minmax ? 2 : 1) * a->dim;
      if (a->x_dtype == DT_BF16) summarize_head(a, DT_BF16, at, y);
      else if (a->x_dtype == DT_F16) summarize_head(a, DT_F16, at, y);
      else summarize_head(a, DT_F32, at, y);
    }
    if (a->written) a->written[yb] = 1;
  }
}
