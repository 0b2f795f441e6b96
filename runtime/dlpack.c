/* dlpack.c: buffers to and from other frameworks, by DLPack's managed tensor. The layout below is the interface of
 * DLPack 1.0, copied as facts: names, order and sizes are what both sides agree on. */
#include <stdio.h>
#include <stdlib.h>
#include "buf.h"

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_FLOAT8_E4M3FN = 10 };

typedef struct dl_tensor {
  void *data;
  struct { int32_t type, id; } device;
  int32_t n_dims;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides;          /* strides in elements; NULL: contiguous */
  uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
  dl_tensor tensor;
  void *manager;
  void (*deleter)(struct dl_managed *self);
} dl_managed;

_Static_assert(sizeof(dl_tensor) == 48 && sizeof(dl_managed) == 64, "layout of DLPack on 64-bit machines");

static const struct { int32_t dtype; uint8_t code, bits; } dtypes[] = {
  {TIDE_F32, DL_FLOAT, 32}, {TIDE_F16, DL_FLOAT, 16}, {TIDE_BF16, DL_BFLOAT, 16},
  {TIDE_F8E4M3, DL_FLOAT8_E4M3FN, 8}, {TIDE_I32, DL_INT, 32}, {TIDE_U32, DL_UINT, 32}, {TIDE_I64, DL_INT, 64},
  {TIDE_U8, DL_UINT, 8},
};

/* ---- out -------------------------------------------------------------------------------------------------------- */

typedef struct exported {
  dl_managed managed;                /* first: the taker's pointer is this one */
  tide_buf *buf;                     /* a share of the memory */
  int64_t shape[TIDE_MAX_DIMS], stride[TIDE_MAX_DIMS];
} exported;

static void delete_exported(dl_managed *self) {
  exported *e = self->manager;
  storage_export(e->buf->storage, -1);
  tide_buf_close(e->buf);
  free(e);
}

tide_status tide_buf_to_dlpack(tide_buf *b, void **out) {
  static const int32_t as_is[TIDE_MAX_DIMS] = {0, 1, 2, 3, 4};
  if (!b || !out) return TIDE_EINVAL;
  tide_ctx *ctx = b->storage->ctx;
  dev *d;
  TRY(ctx_device(ctx, b->view.device, &d));
  if (d->ops == &dev_null) return tide_fail(ctx, TIDE_EUNSUPPORTED, "dlpack: the null device has no memory to give");
  exported *e = calloc(1, sizeof *e);
  if (!e) return tide_fail(ctx, TIDE_EMEM, "dlpack: out of memory");
  tide_status status = tide_buf_permute(b, as_is, &e->buf);
  if (status) {
    free(e);
    return status;
  }
  storage_export(b->storage, 1);
  dl_tensor *t = &e->managed.tensor;
  memcpy(e->shape, b->view.shape, sizeof e->shape);
  memcpy(e->stride, b->view.stride, sizeof e->stride);
  *t = (dl_tensor){.data = b->view.data, .n_dims = b->view.n_dims, .shape = e->shape, .strides = e->stride};
  t->device.type = d->ops == &dev_cuda ? DL_CUDA : b->storage->pinned ? DL_CUDA_HOST : DL_CPU;
  t->device.id = d->ops == &dev_cuda ? d->ordinal : 0;
  for (int i = 0; i < COUNT_OF(dtypes); i++) {
    if (dtypes[i].dtype != b->view.dtype) continue;
    t->dtype.code = dtypes[i].code;
    t->dtype.bits = dtypes[i].bits;
    t->dtype.lanes = 1;
  }
  e->managed.manager = e;
  e->managed.deleter = delete_exported;
  *out = &e->managed;
  return TIDE_OK;
}

/* ---- in --------------------------------------------------------------------------------------------------------- */

static void delete_imported(void *arg) {
  dl_managed *managed = arg;
  if (managed->deleter) managed->deleter(managed);
}

static tide_status find_dtype(tide_ctx *ctx, const dl_tensor *t, int32_t *out) {
  for (int i = 0; i < COUNT_OF(dtypes); i++) {
    if (dtypes[i].code != t->dtype.code || dtypes[i].bits != t->dtype.bits || t->dtype.lanes != 1) continue;
    *out = dtypes[i].dtype;
    return TIDE_OK;
  }
  return tide_fail(ctx, TIDE_EDTYPE, "dlpack: no dtype of tide (got code %d, %d bits, %d lanes)", t->dtype.code,
                   t->dtype.bits, t->dtype.lanes);
}

/* The device's id in this context; a cuda device is opened when it is not yet. */
static tide_status find_device(tide_ctx *ctx, const dl_tensor *t, int32_t *out) {
  if (t->device.type == DL_CPU || t->device.type == DL_CUDA_HOST) {
    *out = TIDE_DEVICE_HOST;
    return TIDE_OK;
  }
  if (t->device.type != DL_CUDA && t->device.type != DL_CUDA_MANAGED)
    return tide_fail(ctx, TIDE_EUNSUPPORTED, "dlpack: device of an unknown kind (got %d, want cpu 1 or cuda 2)",
                     t->device.type);
  char name[32];
  snprintf(name, sizeof name, "cuda:%d", t->device.id);
  return tide_device_open(ctx, name, out);
}

static tide_status fill_strides(tide_ctx *ctx, const dl_tensor *t, tide_view *view) {
  bool zero = true;
  int64_t n = 1;
  for (int i = 0; i < t->n_dims; i++) {
    view->shape[i] = t->shape[i];
    view->stride[i] = t->strides ? t->strides[i] : 0;
    zero &= view->stride[i] == 0;
    n *= t->shape[i] > 1 ? 2 : 1;
  }
  if (t->strides && zero && n > 1)   /* in a view, zeros say "contiguous" */
    return tide_fail(ctx, TIDE_ESHAPE, "dlpack: strides are all 0; copy the broadcast tensor first");
  return TIDE_OK;
}

tide_status tide_buf_from_dlpack(tide_ctx *ctx, void *tensor, tide_buf **out) {
  if (!ctx) return TIDE_EINVAL;
  if (!tensor || !out) return tide_fail(ctx, TIDE_EINVAL, "dlpack: tensor and out are required (got NULL)");
  dl_managed *managed = tensor;
  const dl_tensor *t = &managed->tensor;
  tide_view view = {.data = t->data ? (char *)t->data + t->byte_offset : NULL, .n_dims = t->n_dims};
  if (t->n_dims < 0 || t->n_dims > TIDE_MAX_DIMS)
    return tide_fail(ctx, TIDE_ESHAPE, "dlpack: dimensions out of range (got %d, want 0..%d)", t->n_dims, TIDE_MAX_DIMS);
  TRY(find_dtype(ctx, t, &view.dtype));
  TRY(fill_strides(ctx, t, &view));
  TRY(find_device(ctx, t, &view.device));
  return tide_buf_wrap(ctx, &view, delete_imported, managed, out);
}
