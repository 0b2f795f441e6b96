/* buf.c: buffers: storages shared by views, with every allocation in the ledger. */
#include <stdio.h>
#include <stdlib.h>
#include "buf.h"

bool view_is_contiguous(const tide_view *v) {
  int64_t expected = 1;
  for (int i = v->n_dims - 1; i >= 0; i--) {
    if (v->shape[i] != 1 && v->stride[i] != expected) return false;
    expected *= v->shape[i];
  }
  return true;
}

int64_t view_count(const tide_view *v) {
  int64_t n = 1;
  for (int i = 0; i < v->n_dims; i++) n *= v->shape[i];
  return n;
}

char *view_text(const tide_view *v, char out[160]) {
  int at = snprintf(out, 160, "%s[", dtype_name(v->dtype));
  for (int i = 0; i < v->n_dims && i < TIDE_MAX_DIMS; i++)
    at += snprintf(out + at, 160 - (size_t)at, i ? ", %lld" : "%lld", (long long)v->shape[i]);
  snprintf(out + at, 160 - (size_t)at, "]");
  return out;
}

static void set_contiguous(tide_view *v) {
  int64_t step = 1;
  for (int i = v->n_dims - 1; i >= 0; i--) {
    v->stride[i] = step;
    step *= v->shape[i];
  }
}

/* Number of bytes that a shape covers when contiguous, or a failure that says which extent. Extents beside a 0 count,
 * too: strides are made of them. */
static tide_status shape_bytes(tide_ctx *ctx, const char *what, const tide_view *v, int64_t *out) {
  int64_t bytes = dtype_bytes(v->dtype);
  bool empty = false;
  if (!bytes) return tide_fail(ctx, TIDE_EDTYPE, "%s: unknown dtype (got %d, want 1..8)", what, v->dtype);
  if (v->n_dims < 0 || v->n_dims > TIDE_MAX_DIMS)
    return tide_fail(ctx, TIDE_ESHAPE, "%s: dimensions out of range (got %d, want 0..%d)", what, v->n_dims, TIDE_MAX_DIMS);
  for (int i = 0; i < v->n_dims; i++) {
    if (v->shape[i] < 0)
      return tide_fail(ctx, TIDE_ESHAPE, "%s: negative extent (got %lld in dimension %d)", what, (long long)v->shape[i], i);
    empty |= v->shape[i] == 0;
    if (!mul_size(bytes, v->shape[i] ? v->shape[i] : 1, &bytes))
      return tide_fail(ctx, TIDE_ESHAPE, "%s: shape overflows 2^63 bytes at dimension %d", what, i);
  }
  *out = empty ? 0 : bytes;
  return TIDE_OK;
}

/* Strides that a kernel may multiply with any index: none of them leaves 2^63 bytes, nor do all together. */
static tide_status check_strides(tide_ctx *ctx, const char *what, const tide_view *v) {
  int64_t total = 0, step;
  for (int i = 0; i < v->n_dims; i++) {
    int64_t extent = v->shape[i] > 2 ? v->shape[i] : 2, stride = v->stride[i];
    if (stride == INT64_MIN || !mul_size(stride < 0 ? -stride : stride, extent, &step) ||
        !mul_size(step, dtype_bytes(v->dtype), &step) || !add_size(total, step, &total))
      return tide_fail(ctx, TIDE_ESHAPE, "%s: strides overflow 2^63 bytes at dimension %d (got %lld for %lld elements)", what,
                       i, (long long)stride, (long long)v->shape[i]);
  }
  return TIDE_OK;
}

tide_status view_resolve(tide_ctx *ctx, const char *what, const tide_view *in, tide_view *out) {
  if (!in) return tide_fail(ctx, TIDE_EINVAL, "%s: required (got NULL)", what);
  int64_t bytes;
  dev *d;
  TRY(shape_bytes(ctx, what, in, &bytes));
  TRY(ctx_device(ctx, in->device, &d));
  TRY(check_strides(ctx, what, in));
  if (!in->data && bytes > 0) return tide_fail(ctx, TIDE_EINVAL, "%s: data is NULL", what);
  bool strided = false;
  for (int i = 0; i < in->n_dims; i++) strided |= in->stride[i] != 0;
  *out = *in;
  out->device = d->id;
  if (!strided) set_contiguous(out);
  return TIDE_OK;
}

/* The bytes that a view spans: *first .. *last - 1. */
static void span_of(const tide_view *v, uintptr_t *first, uintptr_t *last) {
  int64_t bytes = dtype_bytes(v->dtype);
  *first = (uintptr_t)v->data;
  *last = *first + (uintptr_t)bytes;
  for (int i = 0; i < v->n_dims; i++) {
    int64_t reach = (v->shape[i] - 1) * v->stride[i] * bytes;
    *(reach < 0 ? first : last) += (uintptr_t)reach;
  }
}

bool view_overlaps(const tide_view *a, const tide_view *b) {
  uintptr_t first_a, last_a, first_b, last_b;
  if (view_count(a) == 0 || view_count(b) == 0) return false;
  span_of(a, &first_a, &last_a);
  span_of(b, &first_b, &last_b);
  return first_a < last_b && first_b < last_a;
}

tide_view tide_view_of(int32_t dtype, void *data, int32_t n_dims, const int64_t *shape) {
  tide_view v = {.data = data, .dtype = dtype, .n_dims = n_dims};
  for (int i = 0; i < n_dims && i < TIDE_MAX_DIMS; i++) v.shape[i] = shape[i];
  return v;
}

static void storage_free_memory(storage *s) {
  if (s->owner) {
    if (s->data) s->owner->ops->free(s->owner, s->data, s->pinned);
    mem_release(s->ctx, s->ledger_line, s->bytes);
  } else if (s->release) {
    s->release(s->arg);
  }
  s->data = NULL;
  s->owner = NULL;
  s->release = NULL;
}

static void storage_kill(storage *s) {
  if (!s->linked) return;
  storage_free_memory(s);
  if (s->prev) s->prev->next = s->next;
  else s->ctx->storages = s->next;
  if (s->next) s->next->prev = s->prev;
  s->linked = false;
}

void storage_kill_all(tide_ctx *ctx) {
  for (storage *s = ctx->storages, *next; s; s = next) {
    next = s->next;
    if (!s->n_exports) storage_kill(s);
  }
}

static void storage_unref(storage *s) {
  if (--s->n_refs > 0) return;
  tide_ctx *ctx = s->ctx;
  storage_kill(s);
  free(s);
  ctx_release(ctx);
}

void storage_export(storage *s, int change) {
  s->n_exports += change;
  s->ctx->n_exports += change;
  if (!s->ctx->closed) return;
  if (!s->n_exports) storage_kill(s);
  ctx_close_devices(s->ctx);
}

static void storage_link(tide_ctx *ctx, storage *s) {
  s->ctx = ctx;
  s->n_refs = 1;
  s->linked = true;
  s->next = ctx->storages;
  if (s->next) s->next->prev = s;
  ctx->storages = s;
  ctx_retain(ctx);
}

/* The device that allocates: pinned host memory comes from a cuda device where the context has one. */
static dev *allocator_of(tide_ctx *ctx, dev *d, bool pinned) {
  if (!pinned || d->id != TIDE_DEVICE_HOST) return d;
  for (int32_t id = 1; id <= ctx->n_devices; id++)
    if (ctx->devices[id]->ops == &dev_cuda) return ctx->devices[id];
  return d;
}

tide_status tide_buf_new(tide_ctx *ctx, const tide_buf_settings *settings, tide_buf **out) {
  if (!ctx || !settings || !out) return tide_fail(ctx, TIDE_EINVAL, "buffer: settings and out are required");
  const char *label = settings->label ? settings->label : "buffer";
  tide_view view = {.dtype = settings->dtype, .n_dims = settings->n_dims};
  memcpy(view.shape, settings->shape, sizeof view.shape);
  int64_t bytes;
  dev *d;
  TRY(shape_bytes(ctx, label, &view, &bytes));
  TRY(ctx_device(ctx, settings->device, &d));
  storage *s = calloc(1, sizeof *s);
  tide_buf *b = calloc(1, sizeof *b);
  tide_status status = s && b ? TIDE_OK : tide_fail(ctx, TIDE_EMEM, "%s: out of memory", label);
  if (!status)
    status = mem_reserve(ctx, d->id, bytes, label, settings->setting ? settings->setting : "shape", &s->ledger_line);
  if (!status && bytes > 0) {
    dev *allocator = allocator_of(ctx, d, settings->pinned);
    status = allocator->ops->alloc(allocator, bytes, settings->pinned, &s->data);
    if (status) mem_release(ctx, s->ledger_line, bytes);
  }
  if (status) {
    free(s);
    free(b);
    return status;
  }
  s->owner = allocator_of(ctx, d, settings->pinned);
  s->bytes = bytes;
  s->pinned = settings->pinned;
  storage_link(ctx, s);
  view.data = s->data;
  view.device = d->id;
  set_contiguous(&view);
  *b = (tide_buf){.storage = s, .view = view};
  *out = b;
  return TIDE_OK;
}

tide_status tide_buf_wrap(tide_ctx *ctx, const tide_view *view, void (*release)(void *), void *arg, tide_buf **out) {
  tide_view v;
  if (!ctx || !out) return tide_fail(ctx, TIDE_EINVAL, "buffer: out is required");
  TRY(view_resolve(ctx, "view", view, &v));
  storage *s = calloc(1, sizeof *s);
  tide_buf *b = calloc(1, sizeof *b);
  if (!s || !b) {
    free(s);
    free(b);
    return tide_fail(ctx, TIDE_EMEM, "buffer: out of memory");
  }
  *s = (storage){.data = v.data, .ledger_line = -1, .release = release, .arg = arg};
  storage_link(ctx, s);
  *b = (tide_buf){.storage = s, .view = v};
  *out = b;
  return TIDE_OK;
}

tide_ctx *tide_buf_ctx(const tide_buf *b) { return b && !b->storage->ctx->closed ? b->storage->ctx : NULL; }

static tide_status buf_alive(const tide_buf *b) {
  if (!b) return TIDE_EINVAL;
  return b->storage->ctx->closed ? tide_fail(b->storage->ctx, TIDE_ESTATE, "buffer: its context is closed") : TIDE_OK;
}

static tide_status share(tide_buf *b, const tide_view *view, tide_buf **out) {
  if (!out) return tide_fail(b->storage->ctx, TIDE_EINVAL, "buffer: out is required (got NULL)");
  tide_buf *child = malloc(sizeof *child);
  if (!child) return tide_fail(b->storage->ctx, TIDE_EMEM, "buffer: out of memory");
  *child = (tide_buf){.storage = b->storage, .view = *view};
  b->storage->n_refs++;
  *out = child;
  return TIDE_OK;
}

static void *advance(const tide_view *v, int dim, int64_t i) {
  return (char *)v->data + i * v->stride[dim] * dtype_bytes(v->dtype);
}

tide_status tide_buf_slice(tide_buf *b, int32_t dim, int64_t first, int64_t count, tide_buf **out) {
  TRY(buf_alive(b));
  tide_view v = b->view;
  if (dim < 0 || dim >= v.n_dims)
    return tide_fail(b->storage->ctx, TIDE_ERANGE, "slice: dim out of range (got %d, want 0..%d)", dim, v.n_dims - 1);
  if (first < 0 || count < 0 || first > v.shape[dim] || count > v.shape[dim] - first)
    return tide_fail(b->storage->ctx, TIDE_ERANGE, "slice: out of range (got first %lld and count %lld, want within %lld)",
                     (long long)first, (long long)count, (long long)v.shape[dim]);
  v.data = advance(&v, dim, first);
  v.shape[dim] = count;
  return share(b, &v, out);
}

tide_status tide_buf_index(tide_buf *b, int64_t i, tide_buf **out) {
  TRY(buf_alive(b));
  tide_view v = b->view;
  if (v.n_dims == 0) return tide_fail(b->storage->ctx, TIDE_ESHAPE, "index: a scalar has no dimension to index");
  if (i < 0 || i >= v.shape[0])
    return tide_fail(b->storage->ctx, TIDE_ERANGE, "index: out of range (got %lld, want 0..%lld)", (long long)i,
                     (long long)v.shape[0] - 1);
  v.data = advance(&v, 0, i);
  v.n_dims--;
  for (int d = 0; d < TIDE_MAX_DIMS; d++) {
    v.shape[d] = d < v.n_dims ? v.shape[d + 1] : 0;
    v.stride[d] = d < v.n_dims ? v.stride[d + 1] : 0;
  }
  return share(b, &v, out);
}

tide_status tide_buf_reshape(tide_buf *b, int32_t n_dims, const int64_t *shape, tide_buf **out) {
  TRY(buf_alive(b));
  tide_ctx *ctx = b->storage->ctx;
  tide_view v = {.data = b->view.data, .dtype = b->view.dtype, .n_dims = n_dims, .device = b->view.device};
  char from[160], to[160];
  int64_t bytes;
  if (!shape && n_dims > 0) return tide_fail(ctx, TIDE_EINVAL, "reshape: shape is required (got NULL)");
  for (int i = 0; i < n_dims && i < TIDE_MAX_DIMS; i++) v.shape[i] = shape[i];
  TRY(shape_bytes(ctx, "reshape", &v, &bytes));
  if (view_count(&v) != view_count(&b->view))
    return tide_fail(ctx, TIDE_ESHAPE, "reshape: element counts differ (got %s, want as many as %s)", view_text(&v, to),
                     view_text(&b->view, from));
  if (!view_is_contiguous(&b->view))
    return tide_fail(ctx, TIDE_ESHAPE, "reshape: %s is not contiguous; copy it into a new buffer first",
                     view_text(&b->view, from));
  set_contiguous(&v);
  return share(b, &v, out);
}

tide_status tide_buf_permute(tide_buf *b, const int32_t *order, tide_buf **out) {
  TRY(buf_alive(b));
  tide_view v = b->view;
  unsigned seen = 0;
  if (!order && v.n_dims > 0) return tide_fail(b->storage->ctx, TIDE_EINVAL, "permute: order is required (got NULL)");
  for (int i = 0; i < v.n_dims; i++) {
    if (order[i] < 0 || order[i] >= v.n_dims || seen & 1u << order[i])
      return tide_fail(b->storage->ctx, TIDE_EINVAL, "permute: order is no permutation of 0..%d (got %d at %d)", v.n_dims - 1,
                       order[i], i);
    seen |= 1u << order[i];
    v.shape[i] = b->view.shape[order[i]];
    v.stride[i] = b->view.stride[order[i]];
  }
  return share(b, &v, out);
}

tide_status tide_buf_view(const tide_buf *b, tide_view *out) {
  TRY(buf_alive(b));
  if (!out) return tide_fail(b->storage->ctx, TIDE_EINVAL, "view: out is required (got NULL)");
  *out = b->view;
  return TIDE_OK;
}

void tide_buf_close(tide_buf *b) {
  if (!b) return;
  storage_unref(b->storage);
  free(b);
}
