/* device.c: finds, opens and closes the devices of a context; its streams, events and graphs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "buf.h"

static const dev_ops *const backends[] = {
#define TIDE_DEVICE(kind) &dev_##kind,
#include "devices.def"
#undef TIDE_DEVICE
};

struct tide_event {
  tide_ctx *ctx;
  dev *device;
  void *handle;
  tide_event *next;
};

struct tide_graph {
  tide_ctx *ctx;
  dev *device;
  void *handle;
  tide_graph *next;
};

char *dev_name(const dev *d, char out[32]) {
  if (d->ops == &dev_cuda) snprintf(out, 32, "cuda:%d", d->ordinal);
  else snprintf(out, 32, "%s", d->ops->kind);
  return out;
}

tide_status tide_device_probe(int32_t index, tide_device_info *out) {
  if (!out) return TIDE_EINVAL;
  for (int b = 0; b < COUNT_OF(backends) && index >= 0; b++) {
    for (int32_t ordinal = 0;; ordinal++, index--) {
      tide_device_info info = {0};
      if (backends[b]->probe(ordinal, &info)) break;
      if (index > 0) continue;
      *out = info;
      return TIDE_OK;
    }
  }
  return TIDE_ERANGE;
}

/* "cuda:1" -> backend and ordinal. */
static const dev_ops *parse_name(const char *name, int32_t *ordinal) {
  for (int b = 0; b < COUNT_OF(backends); b++) {
    size_t n = strlen(backends[b]->kind);
    if (strncmp(name, backends[b]->kind, n)) continue;
    *ordinal = 0;
    if (!name[n]) return backends[b];
    if (name[n] != ':' || name[n + 1] < '0' || name[n + 1] > '9') continue;
    char *end;
    errno = 0;
    long value = strtol(name + n + 1, &end, 10);
    if (*end || errno || value > 255) continue;
    *ordinal = (int32_t)value;
    return backends[b];
  }
  return NULL;
}

tide_status tide_device_open(tide_ctx *ctx, const char *name, int32_t *out_device) {
  if (!ctx || !name || !out_device) return tide_fail(ctx, TIDE_EINVAL, "device: name and out_device are required");
  if (ctx->closed) return tide_fail(ctx, TIDE_ESTATE, "device: the context is closed");
  int32_t ordinal;
  const dev_ops *ops = parse_name(name, &ordinal);
  if (!ops) return tide_fail(ctx, TIDE_EINVAL, "device: unknown (got \"%.40s\", want \"cpu\", \"cuda\", \"cuda:N\" or \"null\")", name);
  for (int32_t id = 1; id <= ctx->n_devices; id++) {
    if (ctx->devices[id]->ops != ops || ctx->devices[id]->ordinal != ordinal) continue;
    *out_device = id;
    return TIDE_OK;
  }
  if (ctx->n_devices + 1 >= CTX_MAX_DEVICES)
    return tide_fail(ctx, TIDE_ERANGE, "device: a context holds at most %d devices", CTX_MAX_DEVICES - 1);
  dev *d = calloc(1, sizeof *d);
  if (!d) return tide_fail(ctx, TIDE_EMEM, "device: out of memory");
  *d = (dev){.ops = ops, .ctx = ctx, .id = ctx->n_devices + 1, .ordinal = ordinal};
  tide_status status = ops->open(d);
  if (status) {
    free(d);
    return status;
  }
  ctx->devices[++ctx->n_devices] = d;
  *out_device = d->id;
  return TIDE_OK;
}

tide_status tide_device_describe(tide_ctx *ctx, int32_t device, tide_device_info *out) {
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  if (!out) return tide_fail(ctx, TIDE_EINVAL, "device: out is required (got NULL)");
  tide_device_info info = {0};
  TRY(d->ops->describe(d, &info));
  *out = info;
  return TIDE_OK;
}

static void kill_handles(tide_ctx *ctx) {
  for (tide_event *e = ctx->events; e; e = e->next) {
    e->device->ops->event_free(e->device, e->handle);
    e->device = NULL;
  }
  for (tide_graph *g = ctx->graphs; g; g = g->next) {
    g->device->ops->graph_free(g->device, g->handle);
    g->device = NULL;
  }
  ctx->events = NULL;
  ctx->graphs = NULL;
}

void ctx_close_devices(tide_ctx *ctx) {
  if (ctx->n_exports) return;
  for (; ctx->n_devices; ctx->n_devices--) {
    dev *d = ctx->devices[ctx->n_devices];
    d->ops->close(d);
    free(d);
  }
}

void tide_ctx_close(tide_ctx *ctx) {
  if (!ctx || ctx->closed) return;
  for (int32_t id = 1; id <= ctx->n_devices; id++) ctx->devices[id]->ops->sync(ctx->devices[id], NULL, true);
  kill_handles(ctx);
  storage_kill_all(ctx);
  ctx->closed = true;
  ctx_close_devices(ctx);
  ctx_release(ctx);
}

tide_status tide_stream_new(tide_ctx *ctx, int32_t device, void **out_stream) {
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  if (!out_stream) return tide_fail(ctx, TIDE_EINVAL, "stream: out is required (got NULL)");
  return d->ops->stream_new(d, out_stream);
}

tide_status tide_stream_free(tide_ctx *ctx, int32_t device, void *stream) {
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  return stream ? d->ops->stream_free(d, stream) : TIDE_OK;
}

tide_status tide_sync(tide_ctx *ctx, int32_t device, void *stream) {
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  return d->ops->sync(d, stream, false);
}

tide_status tide_stream_query(tide_ctx *ctx, int32_t device, void *stream) {
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  return d->ops->stream_query(d, stream);
}

tide_status tide_event_new(tide_ctx *ctx, int32_t device, tide_event **out) {
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  if (!out) return tide_fail(ctx, TIDE_EINVAL, "event: out is required (got NULL)");
  tide_event *e = calloc(1, sizeof *e);
  if (!e) return tide_fail(ctx, TIDE_EMEM, "event: out of memory");
  *e = (tide_event){.ctx = ctx, .device = d, .next = ctx->events};
  tide_status status = d->ops->event_new(d, &e->handle);
  if (status) {
    free(e);
    return status;
  }
  ctx->events = e;
  ctx_retain(ctx);
  *out = e;
  return TIDE_OK;
}

static tide_status event_alive(const tide_event *e) {
  if (!e) return TIDE_EINVAL;
  return e->device ? TIDE_OK : tide_fail(e->ctx, TIDE_ESTATE, "event: its context is closed");
}

tide_status tide_event_record(tide_event *event, void *stream) {
  TRY(event_alive(event));
  return event->device->ops->event_record(event->device, event->handle, stream);
}

tide_status tide_stream_wait(tide_event *event, void *stream) {
  TRY(event_alive(event));
  return event->device->ops->stream_wait(event->device, event->handle, stream);
}

tide_status tide_event_elapsed_us(tide_event *first, tide_event *last, double *out) {
  TRY(event_alive(first));
  TRY(event_alive(last));
  if (!out) return tide_fail(first->ctx, TIDE_EINVAL, "event: out is required (got NULL)");
  if (first->device != last->device)
    return tide_fail(first->ctx, TIDE_EINVAL, "event: first and last belong to different devices");
  return first->device->ops->event_elapsed(first->device, first->handle, last->handle, out);
}

void tide_event_close(tide_event *event) {
  if (!event) return;
  if (event->device) {
    event->device->ops->event_free(event->device, event->handle);
    tide_event **at = &event->ctx->events;
    while (*at != event) at = &(*at)->next;
    *at = event->next;
  }
  ctx_release(event->ctx);
  free(event);
}

tide_status tide_graph_begin(tide_ctx *ctx, int32_t device, void *stream) {
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  return d->ops->graph_begin(d, stream);
}

tide_status tide_graph_end(tide_ctx *ctx, int32_t device, void *stream, tide_graph **out) {
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  if (!out) return tide_fail(ctx, TIDE_EINVAL, "graph: out is required (got NULL)");
  tide_graph *g = calloc(1, sizeof *g);
  if (!g) return tide_fail(ctx, TIDE_EMEM, "graph: out of memory");
  *g = (tide_graph){.ctx = ctx, .device = d, .next = ctx->graphs};
  tide_status status = d->ops->graph_end(d, stream, &g->handle);
  if (status) {
    free(g);
    return status;
  }
  ctx->graphs = g;
  ctx_retain(ctx);
  *out = g;
  return TIDE_OK;
}

tide_status tide_graph_replay(tide_graph *graph, void *stream) {
  if (!graph) return TIDE_EINVAL;
  if (!graph->device) return tide_fail(graph->ctx, TIDE_ESTATE, "graph: its context is closed");
  return graph->device->ops->graph_replay(graph->device, graph->handle, stream);
}

void tide_graph_close(tide_graph *graph) {
  if (!graph) return;
  if (graph->device) {
    graph->device->ops->graph_free(graph->device, graph->handle);
    tide_graph **at = &graph->ctx->graphs;
    while (*at != graph) at = &(*at)->next;
    *at = graph->next;
  }
  ctx_release(graph->ctx);
  free(graph);
}
