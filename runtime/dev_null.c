/* dev_null.c: a device that accounts and moves nothing, for replays of decisions. Reads of its memory give zeros. */
#include <stdio.h>
#include "ctx.h"

static tide_status null_describe(dev *d, tide_device_info *out) {
  (void)d;
  snprintf(out->name, sizeof out->name, "null");
  snprintf(out->model, sizeof out->model, "accounts, moves nothing");
  out->total_bytes = out->free_bytes = INT64_MAX;
  return TIDE_OK;
}

static tide_status null_probe(int32_t ordinal, tide_device_info *out) {
  return ordinal == 0 ? null_describe(NULL, out) : TIDE_ERANGE;
}

static tide_status null_open(dev *d) {
  d->caps = (kernel_caps){.n_processors = 1};
  return TIDE_OK;
}

static tide_status null_alloc(dev *d, int64_t bytes, bool pinned, void **out) {
  (void)d, (void)bytes, (void)pinned;
  *out = (void *)256;
  return TIDE_OK;
}

static tide_status null_copy(dev *d, copy_kind kind, void *dst, const void *src, int64_t bytes, dev *peer, void *stream) {
  (void)d, (void)src, (void)peer, (void)stream;
  if (kind == COPY_TO_HOST) memset(dst, 0, (size_t)bytes);
  return TIDE_OK;
}

static tide_status null_launch(dev *d, const kernel *k, const kernel_variant *v, const void *args, void *stream) {
  (void)d, (void)k, (void)v, (void)args, (void)stream;
  return TIDE_OK;
}

static tide_status null_elapsed(dev *d, void *first, void *last, double *us) {
  (void)d, (void)first, (void)last;
  *us = 0;
  return TIDE_OK;
}

static tide_status null_handle(dev *d, void **out) { return (void)d, *out = NULL, TIDE_OK; }
static tide_status null_one(dev *d, void *handle) { return (void)d, (void)handle, TIDE_OK; }
static tide_status null_two(dev *d, void *a, void *b) { return (void)d, (void)a, (void)b, TIDE_OK; }
static tide_status null_sync(dev *d, void *stream, bool whole) { return (void)d, (void)stream, (void)whole, TIDE_OK; }
static tide_status null_graph_end(dev *d, void *stream, void **out) { return (void)stream, null_handle(d, out); }
static void null_close(dev *d) { (void)d; }
static void null_free(dev *d, void *data, bool pinned) { (void)d, (void)data, (void)pinned; }
static void null_drop(dev *d, void *handle) { (void)d, (void)handle; }

const dev_ops dev_null = {
    .kind = "null", .probe = null_probe, .open = null_open, .close = null_close, .describe = null_describe,
    .alloc = null_alloc, .free = null_free, .copy = null_copy, .launch = null_launch,
    .sync = null_sync, .stream_query = null_one, .stream_new = null_handle, .stream_free = null_one,
    .event_new = null_handle, .event_free = null_drop, .event_record = null_two, .stream_wait = null_two,
    .event_elapsed = null_elapsed,
    .graph_begin = null_one, .graph_end = null_graph_end, .graph_replay = null_two, .graph_free = null_drop,
};
