/* copy.c: moves and converts the contents of buffers: fill, copy, read, write, describe. */
#include <math.h>
#include <stdlib.h>
#include "buf.h"
#include "../kernels/copy.h"

tide_status view_copy(dev *d, const tide_view *dst, const tide_view *src, void *stream) {
  tide_copy_args args = {.dst = dst->data, .src = src->data, .dst_dtype = dst->dtype, .src_dtype = src->dtype,
                         .n_dims = dst->n_dims};
  memcpy(args.shape, dst->shape, sizeof args.shape);
  memcpy(args.dst_stride, dst->stride, sizeof args.dst_stride);
  memcpy(args.src_stride, src->stride, sizeof args.src_stride);
  return kernel_launch_on(d, &kernel_copy, NULL, &args, stream);
}

static int64_t view_bytes(const tide_view *v) { return view_count(v) * dtype_bytes(v->dtype); }

/* The device of a live buffer. */
static tide_status device_of(const tide_buf *b, dev **out) {
  if (!b) return TIDE_EINVAL;
  return ctx_device(b->storage->ctx, b->view.device, out);
}

/* A contiguous temporary of the same shape. */
static tide_status temporary(const tide_buf *like, int32_t dtype, int32_t device, bool pinned, tide_buf **out) {
  tide_buf_settings settings = {.dtype = dtype, .n_dims = like->view.n_dims, .device = device, .pinned = pinned,
                                .label = "copy", .setting = "shape"};
  memcpy(settings.shape, like->view.shape, sizeof settings.shape);
  return tide_buf_new(like->storage->ctx, &settings, out);
}

tide_status view_fill(dev *d, const tide_view *v, double value, void *stream) {
  bool integer = v->dtype == TIDE_I64 || v->dtype == TIDE_I32 || v->dtype == TIDE_U32;
  float as_f32 = (float)value;
  int64_t as_i64 = value >= -9007199254740992.0 && value <= 9007199254740992.0 ? (int64_t)value : 0;
  if (integer && (double)as_i64 != value)
    return tide_fail(d->ctx, TIDE_ERANGE, "fill: value is not an integer below 2^53 (got %g for %s)", value,
                     dtype_name(v->dtype));
  tide_copy_args args = {.dst = v->data, .dst_dtype = v->dtype, .src_dtype = integer ? TIDE_I64 : TIDE_F32, .n_dims = v->n_dims};
  memcpy(args.shape, v->shape, sizeof args.shape);
  memcpy(args.dst_stride, v->stride, sizeof args.dst_stride);
  if (integer) memcpy(&args.element, &as_i64, sizeof as_i64);
  else memcpy(&args.element, &as_f32, sizeof as_f32);
  return kernel_launch_on(d, &kernel_copy, NULL, &args, stream);
}

tide_status tide_buf_fill(tide_buf *b, double value, void *stream) {
  dev *d;
  TRY(device_of(b, &d));
  return view_count(&b->view) ? view_fill(d, &b->view, value, stream) : TIDE_OK;
}

/* Contiguous bytes between two devices of a context. */
static tide_status move_bytes(dev *to, dev *from, void *dst, const void *src, int64_t bytes, void *stream) {
  bool to_host = to->id == TIDE_DEVICE_HOST, from_host = from->id == TIDE_DEVICE_HOST;
  if (from_host) return to->ops->copy(to, to_host ? COPY_WITHIN : COPY_TO_DEVICE, dst, src, bytes, NULL, stream);
  if (to_host) return from->ops->copy(from, COPY_TO_HOST, dst, src, bytes, NULL, stream);
  return from->ops->copy(from, COPY_TO_PEER, dst, src, bytes, to, stream);
}

/* Across devices through contiguous temporaries where strides or dtypes ask for them; then it waits. */
static tide_status copy_across(tide_buf *dst, tide_buf *src, dev *to, dev *from, void *stream) {
  tide_buf *packed = NULL, *landed = NULL;
  tide_status status = TIDE_OK;
  bool pack = !view_is_contiguous(&src->view);
  bool unpack = !view_is_contiguous(&dst->view) || dst->view.dtype != src->view.dtype;
  if (pack) status = temporary(src, src->view.dtype, from->id, false, &packed);
  if (!status && unpack) status = temporary(dst, src->view.dtype, to->id, false, &landed);
  if (!status && pack) status = view_copy(from, &packed->view, &src->view, stream);
  if (!status && pack && to->id != TIDE_DEVICE_HOST) status = from->ops->sync(from, stream, false);
  if (!status)
    status = move_bytes(to, from, (unpack ? landed : dst)->view.data, (pack ? packed : src)->view.data,
                        view_bytes(&src->view), stream);
  bool streams_of_to = from->id == TIDE_DEVICE_HOST;
  if (!status && unpack && !streams_of_to) status = from->ops->sync(from, stream, false);
  if (!status && unpack) status = view_copy(to, &dst->view, &landed->view, streams_of_to ? stream : NULL);
  if (pack || unpack) {
    if (!status) status = from->ops->sync(from, stream, true);
    if (!status) status = to->ops->sync(to, stream, true);
  }
  tide_buf_close(packed);
  tide_buf_close(landed);
  return status;
}

/* Views of the same elements in the same order. */
static bool is_same_view(const tide_view *a, const tide_view *b) {
  return a->data == b->data && a->dtype == b->dtype && !memcmp(a->shape, b->shape, sizeof a->shape) &&
         !memcmp(a->stride, b->stride, sizeof a->stride);
}

/* Between views that share memory: by way of a temporary, as if all were read before anything is written. Waits. */
static tide_status copy_overlapping(tide_buf *dst, tide_buf *src, dev *d, void *stream) {
  tide_buf *whole;
  TRY(temporary(src, src->view.dtype, d->id, false, &whole));
  tide_status status = view_copy(d, &whole->view, &src->view, stream);
  if (!status) status = view_copy(d, &dst->view, &whole->view, stream);
  if (!status) status = d->ops->sync(d, stream, false);
  tide_buf_close(whole);
  return status;
}

tide_status tide_buf_copy(tide_buf *dst, tide_buf *src, void *stream) {
  dev *to, *from;
  char a[160], b[160];
  TRY(device_of(dst, &to));
  TRY(device_of(src, &from));
  if (dst->storage->ctx != src->storage->ctx)
    return tide_fail(dst->storage->ctx, TIDE_EINVAL, "copy: dst and src belong to different contexts");
  bool same = dst->view.n_dims == src->view.n_dims;
  for (int i = 0; same && i < dst->view.n_dims; i++) same = dst->view.shape[i] == src->view.shape[i];
  if (!same)
    return tide_fail(dst->storage->ctx, TIDE_ESHAPE, "copy: shapes differ (got %s, want %s as dst)", view_text(&src->view, a),
                     view_text(&dst->view, b));
  if (view_count(&dst->view) == 0) return TIDE_OK;
  if (to != from) return copy_across(dst, src, to, from, stream);
  if (is_same_view(&dst->view, &src->view)) return TIDE_OK;
  if (to->ops != &dev_null && view_overlaps(&dst->view, &src->view)) return copy_overlapping(dst, src, to, stream);
  return view_copy(to, &dst->view, &src->view, stream);
}

static tide_status host_view(const tide_buf *b, const char *what, void *host, int64_t host_bytes, tide_view *out) {
  char text[160];
  int64_t want = view_bytes(&b->view);
  if (host_bytes != want || (!host && want))
    return tide_fail(b->storage->ctx, TIDE_ESHAPE, "%s: host_bytes differ from the buffer's (got %lld, want %lld for %s)", what,
                     (long long)host_bytes, (long long)want, view_text(&b->view, text));
  *out = (tide_view){.data = host, .dtype = b->view.dtype, .n_dims = b->view.n_dims, .device = TIDE_DEVICE_HOST};
  memcpy(out->shape, b->view.shape, sizeof out->shape);
  return TIDE_OK;
}

/* Reading and writing are copies between the buffer and a wrapped host pointer, then a wait. */
static tide_status exchange(tide_buf *b, void *host, int64_t host_bytes, bool reading) {
  dev *d;
  tide_view v;
  tide_buf *wrapped;
  TRY(device_of(b, &d));
  TRY(host_view(b, reading ? "read" : "write", host, host_bytes, &v));
  TRY(d->ops->sync(d, NULL, true));
  TRY(tide_buf_wrap(b->storage->ctx, &v, NULL, NULL, &wrapped));
  tide_status status = reading ? tide_buf_copy(wrapped, b, NULL) : tide_buf_copy(b, wrapped, NULL);
  if (!status) status = d->ops->sync(d, NULL, false);
  tide_buf_close(wrapped);
  return status;
}

tide_status tide_buf_read(tide_buf *b, void *host, int64_t host_bytes) { return exchange(b, host, host_bytes, true); }

tide_status tide_buf_write(tide_buf *b, const void *host, int64_t host_bytes) {
  return exchange(b, (void *)(uintptr_t)host, host_bytes, false);
}

static void describe_values(const float *x, int64_t n, tide_buf_stats *s) {
  double sum = 0, bin_sum[24] = {0};
  int64_t n_finite = 0, bin_n[24] = {0};
  for (int64_t i = 0; i < n; i++) {
    double v = x[i];
    s->n_zero += v == 0;
    s->n_nan += isnan(x[i]) != 0;
    s->n_inf += isinf(x[i]) != 0;
    if (!isfinite(x[i])) continue;
    if (!n_finite || v < s->min) s->min = v, s->min_at = i;
    if (!n_finite || v > s->max) s->max = v, s->max_at = i;
    int bin = (int)((double)i * s->n_bins / (double)n);
    bin_sum[bin] += v;
    bin_n[bin]++;
    n_finite++;
    sum += v;
  }
  if (n_finite) s->mean = sum / (double)n_finite;
  for (int i = 0; i < s->n_bins; i++) s->bins[i] = bin_n[i] ? bin_sum[i] / (double)bin_n[i] : NAN;
}

tide_status tide_buf_describe(tide_buf *b, tide_buf_stats *out) {
  dev *d, *host;
  TRY(device_of(b, &d));
  if (!out) return tide_fail(b->storage->ctx, TIDE_EINVAL, "describe: out is required (got NULL)");
  TRY(ctx_device(b->storage->ctx, TIDE_DEVICE_HOST, &host));
  int64_t n = view_count(&b->view);
  tide_buf_stats stats = {.n = n, .min_at = -1, .max_at = -1, .n_bins = n < 24 ? (int32_t)n : 24};
  tide_buf *values = NULL;
  if (n > 0) {
    TRY(temporary(b, TIDE_F32, TIDE_DEVICE_HOST, false, &values));
    tide_status status = d->ops->sync(d, NULL, true);
    if (!status) status = tide_buf_copy(values, b, NULL);
    if (!status) status = d->ops->sync(d, NULL, false);
    if (!status) describe_values(values->view.data, n, &stats);
    tide_buf_close(values);
    TRY(status);
  }
  *out = stats;
  return TIDE_OK;
}
