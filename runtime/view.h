/* view.h: what a function wants of a view, said once, so that every refusal names argument, got, want and setting. */
#ifndef TIDE_VIEW_H
#define TIDE_VIEW_H
#include "buf.h"

enum { ANY_EXTENT = -1 };
enum { PLAIN_FLOATS = 1 << TIDE_F32 | 1 << TIDE_F16 | 1 << TIDE_BF16, ALL_FLOATS = PLAIN_FLOATS | 1 << TIDE_F8E4M3 };

typedef struct view_want {
  const dev *device;                 /* NULL: any of the context */
  uint32_t dtypes;                   /* bits 1 << dtype; 0: any */
  int32_t n_dims;
  int64_t shape[TIDE_MAX_DIMS];      /* ANY_EXTENT: free */
  int32_t n_packed;                  /* trailing dimensions that must be contiguous among themselves */
  const char *setting;               /* what decides the shape: "n_kv_heads and head_dim"; NULL: nothing to set */
} view_want;

/* view_resolve, then the wishes. On failure out is undefined. */
tide_status view_require(tide_ctx *ctx, const char *what, const tide_view *in, const view_want *want, tide_view *out);

/* Refuses an output that shares bytes with what the call reads or writes besides: kernels run in no order. */
tide_status view_apart(tide_ctx *ctx, const dev *d, const char *what, const tide_view *out, const char *other_name,
                       const tide_view *other);

#endif
