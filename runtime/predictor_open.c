/* predictor_open.c: a predictor comes into being, with its maps, and goes. */
#include <stdlib.h>
#include "buf.h"
#include "predictor.h"
#include "../kernels/mark.h"
#include "../kernels/numeric.h"

void *predictor_at(const tide_predictor *p, predictor_part_id part, int64_t element) {
  const tide_buf *b = p->parts[part];
  return b ? (char *)b->view.data + element * dtype_bytes(b->view.dtype) : NULL;
}

tide_status predictor_clear(dev *d, uint8_t *marks, int32_t n_rows, int32_t n_marks, const int32_t *ids, int32_t n,
                            void *stream) {
  tide_mark_args args = {.marks = marks, .ids = ids, .stride = n_marks, .n_rows = n_rows, .n_marks = n_marks, .n = n};
  return kernel_launch_on(d, &kernel_mark, NULL, &args, stream);
}

/* One f32 array of the host into a part, rounded to the part's dtype. */
static tide_status upload(tide_predictor *p, predictor_part_id part, const float *values) {
  tide_buf *host, *to = p->parts[part];
  tide_view v = {.data = (void *)(uintptr_t)values, .dtype = TIDE_F32, .n_dims = to->view.n_dims, .device = TIDE_DEVICE_HOST};
  memcpy(v.shape, to->view.shape, sizeof v.shape);
  TRY(tide_buf_wrap(p->ctx, &v, NULL, NULL, &host));
  tide_status status = tide_buf_copy(to, host, NULL);
  if (!status) status = tide_sync(p->ctx, p->s.device, NULL);
  tide_buf_close(host);
  return status;
}

/* n maps as the kernels see them, f32 values of bf16. */
static void fill_maps(const tide_predictor_settings *s, int64_t n, float *maps) {
  int64_t one = (int64_t)s->head_dim * s->rank;
  if (s->projection == TIDE_PROJECTION_CALIBRATED) {
    for (int64_t i = 0; i < n * one; i++) maps[i] = bf16_to_f32(f32_to_bf16(s->k_map[i]));
    return;
  }
  tide_random_projection(s->head_dim, s->rank, s->seed, (uint16_t *)maps);
  for (int64_t i = one - 1; i >= 0; i--) {
    uint16_t bits;
    memcpy(&bits, (char *)maps + i * (int64_t)sizeof bits, sizeof bits);
    maps[i] = bf16_to_f32(bits);
  }
  for (int64_t i = one; i < n * one; i++) maps[i] = maps[i - one];
}

/* bias[layer][head] = k_mean[layer][head] . P, because the kernels subtract after the product. */
static void fill_bias(const tide_predictor_settings *s, int64_t n_maps, const float *maps, float *bias) {
  for (int64_t row = 0; row < (int64_t)s->n_layers * s->n_kv_heads; row++) {
    const float *mean = s->k_mean + row * s->head_dim;
    for (int32_t j = 0; j < s->rank; j++) {
      double sum = maps ? 0 : mean[j];
      for (int64_t d = 0; maps && d < s->head_dim; d++)
        sum += (double)mean[d] * maps[(row % n_maps * s->head_dim + d) * s->rank + j];
      bias[row * s->rank + j] = (float)sum;
    }
  }
}

static tide_status upload_maps(tide_predictor *p, const tide_predictor_settings *s) {
  bool mapped = p->parts[PART_K_MAPS] != NULL;
  int64_t n_maps = mapped ? (int64_t)p->map_layers * p->n_maps : 0, n_values = n_maps * s->head_dim * s->rank;
  int64_t n_bias = s->k_mean ? (int64_t)s->n_layers * s->n_kv_heads * s->rank : 0;
  float *values = malloc((size_t)(n_values + n_bias + 1) * sizeof *values), *maps = mapped ? values : NULL;
  if (!values) return tide_fail(p->ctx, TIDE_EMEM, "predictor: out of memory for its maps");
  tide_status status = TIDE_OK;
  if (mapped) fill_maps(s, n_maps, maps);
  if (mapped) status = upload(p, PART_K_MAPS, maps);
  if (!status && s->q_map) status = upload(p, PART_Q_MAPS, s->q_map);
  if (!status && s->k_mean) fill_bias(s, n_maps, maps, values + n_values);
  if (!status && s->k_mean) status = upload(p, PART_BIAS, values + n_values);
  free(values);
  return status;
}

static tide_status allocate(tide_predictor *p, const predictor_layout *layout, const char *label) {
  for (int i = 0; i < N_PARTS; i++) {
    const predictor_part *part = &layout->parts[i];
    tide_buf_settings settings = {.dtype = part->dtype, .n_dims = part->n_dims, .device = p->s.device, .label = label,
                                  .setting = part->setting};
    memcpy(settings.shape, part->shape, sizeof settings.shape);
    if (part->bytes) TRY(tide_buf_new(p->ctx, &settings, &p->parts[i]));
  }
  return TIDE_OK;
}

static tide_status fill(tide_predictor *p, dev *d, const tide_predictor_settings *s) {
  TRY(upload_maps(p, s));
  if (s->no_predict) return TIDE_OK;
  TRY(predictor_clear(d, predictor_at(p, PART_WRITTEN, 0), s->n_layers, s->n_blocks, NULL, s->n_blocks, NULL));
  return d->ops->sync(d, NULL, false);
}

/* Sizes, maps and room, before anything is allocated. */
static tide_status check(tide_ctx *ctx, const tide_predictor_settings *settings, predictor_layout *layout) {
  char error[sizeof ctx->error] = "";
  int64_t free_bytes;
  tide_status status = predictor_layout_of(settings, layout, error, sizeof error);
  if (status) return tide_fail(ctx, status, "predictor: %s", error);
  if (layout->s.projection == TIDE_PROJECTION_CALIBRATED && !layout->s.k_map)
    return tide_fail(ctx, TIDE_EINVAL, "predictor: k_map: a calibrated projection needs it (got NULL, want f32 [%d, %d, %d, %d])",
                     layout->s.n_layers, layout->s.n_kv_heads, layout->s.head_dim, layout->s.rank);
  TRY(mem_free(ctx, layout->s.device, &free_bytes));
  status = predictor_admit(layout, free_bytes, error, sizeof error);
  return status ? tide_fail(ctx, status, "%s", error) : TIDE_OK;
}

tide_status tide_predictor_open(tide_ctx *ctx, const tide_predictor_settings *settings, tide_predictor **out) {
  predictor_layout layout;
  dev *d;
  if (!settings || !out) return tide_fail(ctx, TIDE_EINVAL, "predictor: settings and out are required");
  TRY(ctx_device(ctx, settings->device, &d));
  TRY(check(ctx, settings, &layout));
  tide_predictor *p = calloc(1, sizeof *p);
  if (!p) return tide_fail(ctx, TIDE_EMEM, "predictor: out of memory");
  *p = (tide_predictor){.ctx = ctx, .s = layout.s, .entries = layout.entries, .map_layers = layout.map_layers,
                        .n_maps = layout.n_maps};
  p->s.device = d->id;
  p->s.k_map = p->s.q_map = p->s.k_mean = NULL;
  p->s.label = NULL;
  ctx_retain(ctx);
  int64_t bytes = (int64_t)layout.s.n_layers * (int64_t)sizeof *p->sequences;
  tide_status status = tide_mem_check(ctx, TIDE_DEVICE_HOST, bytes, "predictor", "n_layers");
  p->sequences = status ? NULL : calloc(1, (size_t)bytes);
  if (!status && !p->sequences) status = tide_fail(ctx, TIDE_EMEM, "predictor: out of memory");
  if (!status) status = allocate(p, &layout, settings->label ? settings->label : "predictor");
  if (!status) status = fill(p, d, &layout.s);
  if (status) tide_predictor_close(p);
  else *out = p;
  return status;
}

void tide_predictor_close(tide_predictor *p) {
  if (!p) return;
  for (int i = 0; i < N_PARTS; i++) tide_buf_close(p->parts[i]);
  free(p->sequences);
  ctx_release(p->ctx);
  free(p);
}
