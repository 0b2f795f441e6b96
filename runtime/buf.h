/* buf.h: a buffer is a view and a share in a storage; a storage is memory with an owner. */
#ifndef TIDE_BUF_H
#define TIDE_BUF_H
#include "ctx.h"

struct storage {
  tide_ctx *ctx;
  storage *prev, *next;              /* of the context's list */
  void *data;                        /* NULL once the context has closed */
  int64_t bytes;
  dev *owner;                        /* who allocated it; NULL for foreign memory */
  int32_t ledger_line;               /* -1 for foreign memory */
  int32_t n_refs, n_exports;         /* n_exports: tensors of DLPack that outlive the context */
  bool linked;                       /* in the context's list */
  bool pinned;
  void (*release)(void *arg);        /* foreign memory */
  void *arg;
};

struct tide_buf {
  storage *storage;
  tide_view view;
};

/* Frees the memory of every storage but the exported ones; what still points to one then only refuses and closes. */
void storage_kill_all(tide_ctx *ctx);
/* Counts a tensor that was exported (1) or has come back (-1); memory that outlived its context goes with the last. */
void storage_export(storage *s, int change);

bool view_is_contiguous(const tide_view *v);
int64_t view_count(const tide_view *v);
/* Fills in strides and the device id, and checks dtype, rank, extents and overflow. what names the argument. */
tide_status view_resolve(tide_ctx *ctx, const char *what, const tide_view *in, tide_view *out);
/* The text "bf16[145, 3, 64]". Returns out, which holds 160 bytes. */
char *view_text(const tide_view *v, char out[160]);
/* Whether two views of one device may share bytes: from first to last byte, so interleaved views count. */
bool view_overlaps(const tide_view *a, const tide_view *b);
/* Copies between two views of one device, any strides and dtypes. */
tide_status view_copy(dev *d, const tide_view *dst, const tide_view *src, void *stream);
/* Sets every element; an integer dtype takes integers below 2^53 only. Enqueues. */
tide_status view_fill(dev *d, const tide_view *v, double value, void *stream);

#endif
