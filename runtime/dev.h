/* dev.h: what a backend offers. Every function reports through tide_fail(d->ctx, ...). */
#ifndef TIDE_DEV_H
#define TIDE_DEV_H
#include "base.h"
#include "../kernels/kernel.h"

typedef struct dev dev;

typedef enum { COPY_TO_DEVICE, COPY_TO_HOST, COPY_WITHIN, COPY_TO_PEER } copy_kind;

typedef struct dev_ops {
  const char *kind;                                                     /* "cpu", "cuda", "null" */
  /* The ordinal-th device of this kind; TIDE_ERANGE past the last. An absent backend answers ordinal 0 with why_absent. */
  tide_status (*probe)(int32_t ordinal, tide_device_info *out);
  tide_status (*open)(dev *d);                                          /* d->ctx, id, ordinal are set; fills caps, impl */
  void (*close)(dev *d);
  tide_status (*describe)(dev *d, tide_device_info *out);

  tide_status (*alloc)(dev *d, int64_t bytes, bool pinned, void **out); /* 256-byte aligned */
  void (*free)(dev *d, void *data, bool pinned);
  /* Enqueues; host ends may be pageable. peer is the destination's device for COPY_TO_PEER. */
  tide_status (*copy)(dev *d, copy_kind kind, void *dst, const void *src, int64_t bytes, dev *peer, void *stream);
  tide_status (*launch)(dev *d, const kernel *k, const kernel_variant *v, const void *args, void *stream);

  tide_status (*sync)(dev *d, void *stream, bool whole_device);
  tide_status (*stream_query)(dev *d, void *stream);                    /* TIDE_ESTATE when busy, without a message */
  tide_status (*stream_new)(dev *d, void **out);
  tide_status (*stream_free)(dev *d, void *stream);
  tide_status (*event_new)(dev *d, void **out);
  void (*event_free)(dev *d, void *event);
  tide_status (*event_record)(dev *d, void *event, void *stream);
  tide_status (*stream_wait)(dev *d, void *event, void *stream);
  tide_status (*event_elapsed)(dev *d, void *first, void *last, double *us);
  tide_status (*graph_begin)(dev *d, void *stream);
  tide_status (*graph_end)(dev *d, void *stream, void **out);
  tide_status (*graph_replay)(dev *d, void *graph, void *stream);
  void (*graph_free)(dev *d, void *graph);
} dev_ops;

struct dev {
  const dev_ops *ops;
  tide_ctx *ctx;
  int32_t id, ordinal;
  kernel_caps caps;
  void *impl;
};

#define TIDE_DEVICE(kind) extern const dev_ops dev_##kind;
#include "devices.def"
#undef TIDE_DEVICE

/* "cuda:0" of an open device, "cpu" and "null" without an ordinal. Returns out, which holds 32 bytes. */
char *dev_name(const dev *d, char out[32]);

/* kernel.c: checks, chooses the best variant that does not refuse, launches. */
const kernel *kernel_find(const char *name);
tide_status kernel_launch_on(dev *d, const kernel *k, const char *variant, const void *args, void *stream);

#endif
