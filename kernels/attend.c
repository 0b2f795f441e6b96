/* attend.c: reference and variants of attend (see attend.h). */
#include <stdio.h>
#include "attend_row.h"
#include "numeric.h"

static bool is_plain_float(int32_t dtype) { return dtype == DT_F32 || dtype == DT_F16 || dtype == DT_BF16; }

static bool check(const void *args, char *why, size_t why_bytes) {
  const tide_attend_args *a = args;
  if (!is_plain_float(a->q_dtype) || !(is_plain_float(a->kv_dtype) || a->kv_dtype == DT_F8E4M3))
    snprintf(why, why_bytes, "q must be f32, f16 or bf16, k and v also f8e4m3 (got dtypes %d and %d)", a->q_dtype, a->kv_dtype);
  else if (a->n_q_heads < 1 || a->n_kv_heads < 1 || a->n_q_heads % a->n_kv_heads)
    snprintf(why, why_bytes, "n_q_heads must be a multiple of n_kv_heads (got %d and %d)", a->n_q_heads, a->n_kv_heads);
  else if (a->head_dim < 1 || a->head_dim > 256 || a->block_size < 1)
    snprintf(why, why_bytes, "head_dim must be 1..256 and block_size 1 or more (got %d and %d)", a->head_dim, a->block_size);
  else if (a->n_rows < 0 || a->n_blocks < 0 || a->n_tokens < 0 || (a->list && a->n_list < 0))
    snprintf(why, why_bytes, "n_rows, n_blocks, n_tokens and n_list must be 0 or more (got %d, %d, %d, %d)", a->n_rows,
             a->n_blocks, a->n_tokens, a->n_list);
  else if (a->mass && !a->lse) snprintf(why, why_bytes, "mass needs lse (got NULL)");
  else return false;
  return true;
}

/* Phase 0: rows x heads give out and lse. Phase 1: rows x blocks give mass. */
static int64_t n_items(const void *args, int phase) {
  const tide_attend_args *a = args;
  if (phase == 1) return a->mass ? (int64_t)a->n_rows * a->n_blocks : 0;
  return (int64_t)a->n_rows * a->n_q_heads;
}

static float scaled_dot(const tide_attend_args *a, int64_t row, int h, int64_t pool, int t) {
  int64_t q = row * a->q_row_stride + h * a->q_head_stride;
  int64_t k = pool * a->k_block_stride + t * a->k_token_stride + h / (a->n_q_heads / a->n_kv_heads) * a->k_head_stride;
  float sum = 0;
  for (int d = 0; d < a->head_dim; d++)
    sum = fmaf(load_f32(a->q, a->q_dtype, q + d), load_f32(a->k, a->kv_dtype, k + d), sum);
  return a->scale * sum;
}

/* Online softmax: m the maximum so far, l the sum of exp(s - m), o the weighted values. */
static void add_token(const tide_attend_args *a, int h, int64_t pool, int t, float s, float *m, float *l, float *o) {
  int64_t v = pool * a->v_block_stride + t * a->v_token_stride + h / (a->n_q_heads / a->n_kv_heads) * a->v_head_stride;
  float high = fmaxf(*m, s);
  if (high == -INFINITY && s == s) return;
  float keep = expf(*m - high), w = expf(s - high);
  for (int d = 0; d < a->head_dim; d++) o[d] = o[d] * keep + w * load_f32(a->v, a->kv_dtype, v + d);
  *l = *l * keep + w;
  *m = high;
}

static void attend_head(const tide_attend_args *a, int64_t row, int h) {
  float m = -INFINITY, l = 0, o[256] = {0};
  int64_t n = a->list ? a->n_list : a->n_blocks, pool = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t j = a->list ? a->list[row * a->list_stride + i] : i;
    int n_tokens = tokens_of(a, row, j, &pool);
    for (int t = 0; t < n_tokens; t++) add_token(a, h, pool, t, scaled_dot(a, row, h, pool, t), &m, &l, o);
  }
  int64_t at = row * a->n_q_heads + h;
  for (int d = 0; a->out && d < a->head_dim; d++) a->out[at * a->head_dim + d] = l == 0 ? 0 : a->v_scale * (o[d] / l);
  if (a->lse) a->lse[at] = l == 0 ? -INFINITY : m + logf(l);
}

static void mass_of_block(const tide_attend_args *a, int64_t row, int64_t j) {
  float total = 0;
  int64_t pool = 0;
  int n_tokens = in_list(a, row, j) ? tokens_of(a, row, j, &pool) : 0;
  for (int h = 0; h < a->n_q_heads; h++)
    for (int t = 0; t < n_tokens; t++) total += expf(scaled_dot(a, row, h, pool, t) - a->lse[row * a->n_q_heads + h]);
  a->mass[row * a->n_blocks + j] = total / (float)a->n_q_heads;
}

static void ref(const void *args, int phase, int64_t first, int64_t last) {
  const tide_attend_args *a = args;
  for (int64_t item = first; item < last; item++) {
    if (phase == 0) attend_head(a, item / a->n_q_heads, (int)(item % a->n_q_heads));
    else mass_of_block(a, item / a->n_blocks, item % a->n_blocks);
  }
}

#ifndef KERNEL_NO_SIMD
void attend_v3(const void *args, int phase, int64_t first, int64_t last);
void attend_v4(const void *args, int phase, int64_t first, int64_t last);
#endif

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
#ifndef KERNEL_NO_SIMD
    {.name = "v3", .backend = KERNEL_CPU, .level = CPU_V3, .run = attend_v3},
    {.name = "v4", .backend = KERNEL_CPU, .level = CPU_V4, .run = attend_v4},
#endif
};

const kernel kernel_attend = {.name = "attend", .args_bytes = sizeof(tide_attend_args), .check = check, .n_phases = 2,
                              .n_items = n_items, .n_variants = sizeof variants / sizeof *variants, .variants = variants};
