/* view.c: checks of views against what a function wants. */
#include <stdio.h>
#include "view.h"

static char *dtypes_text(uint32_t dtypes, char out[80]) {
  size_t at = 0;
  for (int32_t dtype = TIDE_F32; dtype <= TIDE_U8; dtype++) {
    if (!(dtypes & 1u << dtype)) continue;
    dtypes &= ~(1u << dtype);
    at += (size_t)snprintf(out + at, 80 - at, "%s%s", at == 0 ? "" : dtypes ? ", " : " or ", dtype_name(dtype));
  }
  return out;
}

static char *want_text(const view_want *want, char out[160]) {
  int at = snprintf(out, 160, "[");
  for (int i = 0; i < want->n_dims; i++) {
    at += snprintf(out + at, 160 - (size_t)at, i ? ", " : "");
    at += want->shape[i] == ANY_EXTENT ? snprintf(out + at, 160 - (size_t)at, "n")
                                       : snprintf(out + at, 160 - (size_t)at, "%lld", (long long)want->shape[i]);
  }
  snprintf(out + at, 160 - (size_t)at, "]");
  return out;
}

static bool shape_fits(const tide_view *v, const view_want *want) {
  if (v->n_dims != want->n_dims) return false;
  for (int i = 0; i < v->n_dims; i++)
    if (want->shape[i] != ANY_EXTENT && v->shape[i] != want->shape[i]) return false;
  return true;
}

/* The first stride from the end that breaks contiguity within the packed dimensions; -1: none. */
static int loose_dimension(const tide_view *v, int n_packed, int64_t *expected) {
  *expected = 1;
  for (int i = v->n_dims - 1; i >= 0 && i >= v->n_dims - n_packed; i--) {
    if (v->shape[i] > 1 && v->stride[i] != *expected) return i;
    *expected *= v->shape[i];
  }
  return -1;
}

tide_status view_require(tide_ctx *ctx, const char *what, const tide_view *in, const view_want *want, tide_view *out) {
  char a[160], b[160], here[32], there[32];
  TRY(view_resolve(ctx, what, in, out));
  if (want->device && out->device != want->device->id)
    return tide_fail(ctx, TIDE_EDEVICE, "%s: lies on another device (got %s, want %s); copy it there first", what,
                     dev_name(ctx->devices[out->device], here), dev_name(want->device, there));
  if (want->dtypes && !(want->dtypes & 1u << out->dtype))
    return tide_fail(ctx, TIDE_EDTYPE, "%s: dtype not accepted here (got %s, want %s)", what, dtype_name(out->dtype),
                     dtypes_text(want->dtypes, a));
  if (!shape_fits(out, want))
    return tide_fail(ctx, TIDE_ESHAPE, "%s: wrong shape (got %s, want %s)%s%s", what, view_text(out, a), want_text(want, b),
                     want->setting ? "; set by " : "", want->setting ? want->setting : "");
  int64_t expected;
  int loose = loose_dimension(out, want->n_packed, &expected);
  if (loose >= 0)
    return tide_fail(ctx, TIDE_ESHAPE, "%s: dimension %d is not contiguous (got stride %lld, want %lld)", what, loose,
                     (long long)out->stride[loose], (long long)expected);
  return TIDE_OK;
}

/* Buffers of the null device have no memory to share. */
tide_status view_apart(tide_ctx *ctx, const dev *d, const char *what, const tide_view *out, const char *other_name,
                       const tide_view *other) {
  if (d->ops == &dev_null || !view_overlaps(out, other)) return TIDE_OK;
  return tide_fail(ctx, TIDE_EINVAL, "%s: shares memory with %s; give it memory of its own", what, other_name);
}
