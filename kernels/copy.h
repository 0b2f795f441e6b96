/* copy: dst[i...] = src[i...] for every index below shape, with any strides and a change of dtype. A source stride of 0
 * repeats an element, so a fill is a copy of one element, which may stand in the struct itself. Equal dtypes copy bits; others go through f32 (integers through
 * f64), round to nearest even, saturate at the ends of an integer or f8e4m3 range; NaN becomes 0 in integers. */
#ifndef TIDE_COPY_H
#define TIDE_COPY_H
#include <stdint.h>
typedef struct tide_copy_args {
  void *dst;
  const void *src;                        /* NULL: element, with every src_stride 0 */
  int32_t dst_dtype, src_dtype;
  int32_t n_dims, reserved;
  int64_t shape[5];
  int64_t dst_stride[5], src_stride[5];   /* elements */
  uint64_t element;                       /* in its first bytes, of src_dtype */
} tide_copy_args;
#endif
