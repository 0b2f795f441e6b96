/* copy_dims.h: the dimensions of a copy with what is contiguous joined, and how many elements may move at once. The same on
 * the host, which plans, and on the device, which runs. */
#ifndef TIDE_COPY_DIMS_H
#define TIDE_COPY_DIMS_H
#include "copy.h"
#include "kernel.h"
#ifdef __CUDACC__
#define COPY_INLINE __host__ __device__ static inline
#else
#define COPY_INLINE static inline
#endif

enum { COPY_IN_FLIGHT = 4, COPY_CAST_WIDTH = 8 };   /* words a thread has in flight; floats that are converted at once */

typedef struct copy_dims {
  int n;                                       /* 1 or more */
  int64_t shape[5], dst_stride[5], src_stride[5];
} copy_dims;

COPY_INLINE int copy_bytes(int32_t dtype) {
  return dtype == DT_I64 ? 8 : dtype == DT_F32 || dtype == DT_I32 || dtype == DT_U32 ? 4
       : dtype == DT_F16 || dtype == DT_BF16 ? 2 : dtype == DT_F8E4M3 || dtype == DT_U8 ? 1 : 0;
}

COPY_INLINE const void *copy_source(const tide_copy_args *a) { return a->src ? a->src : &a->element; }

COPY_INLINE void copy_join(const tide_copy_args *a, copy_dims *out) {
  out->n = 0;
  for (int d = 0; d < a->n_dims; d++) {
    int last = out->n - 1;
    if (a->shape[d] == 1) continue;
    bool joins = last >= 0 && out->dst_stride[last] == a->dst_stride[d] * a->shape[d] &&
                 out->src_stride[last] == a->src_stride[d] * a->shape[d];
    if (!joins) out->shape[++last] = 1;
    out->shape[last] *= a->shape[d];
    out->dst_stride[last] = a->dst_stride[d];
    out->src_stride[last] = a->src_stride[d];
    out->n = last + 1;
  }
  if (out->n > 0) return;
  out->n = 1;
  out->shape[0] = out->dst_stride[0] = out->src_stride[0] = 1;
}

/* Whether width neighbours move as one: both sides contiguous and aligned in the last dimension, and width a divisor of
 * every other step. A single dimension may leave a rest. */
COPY_INLINE bool copy_fits(const tide_copy_args *a, const copy_dims *c, int width) {
  int last = c->n - 1;
  bool fits = c->dst_stride[last] == 1 && c->src_stride[last] == 1 && (last == 0 || c->shape[last] % width == 0) &&
              (uintptr_t)a->dst % (uintptr_t)(width * copy_bytes(a->dst_dtype)) % 16 == 0 &&
              (uintptr_t)a->src % (uintptr_t)(width * copy_bytes(a->src_dtype)) % 16 == 0;
  for (int d = 0; d < last; d++) fits = fits && c->dst_stride[d] % width == 0 && c->src_stride[d] % width == 0;
  return fits;
}

/* Counts in units of width elements from here on. */
COPY_INLINE void copy_widen(copy_dims *c, int width) {
  c->shape[c->n - 1] /= width;
  for (int d = 0; d < c->n - 1; d++) {
    c->dst_stride[d] /= width;
    c->src_stride[d] /= width;
  }
}

COPY_INLINE int64_t copy_count(const copy_dims *c) {
  int64_t n = 1;
  for (int d = 0; d < c->n; d++) n *= c->shape[d];
  return n;
}

#endif
