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

/* A weight is at most 1; two sums of a logit so large that they differ by more than its softmax are held there. */
static float weight(float logit, float lse) { return expf(logit > lse ? 0 : logit - lse); }

static void mass_of_block(const tide_attend_args *a, int64_t row, int64_t j) {
  float total = 0;
  int64_t pool = 0;
  int n_tokens = in_list(a, row, j) ? tokens_of(a, row, j, &pool) : 0;
  for (int h = 0; h < a->n_q_heads; h++)
    for (int t = 0; t < n_tokens; t++) 
      total += weight(scaled_dot(a, row, h, pool, t), a->lse[row * a->n_q_heads + h]);
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

/* ---- geometry of attend.cu ---- */

/* The bodies of attend.cu for a kv dtype; head_dim 64, 128, 256 take wide loads. */
typedef struct body {
  int32_t dtype, head_dim;
  const char *one, *four, *mass;
} body;

static const body bodies[] = {
#define BODY(name, dtype, head_dim) {dtype, head_dim, "attend_" name "_1", "attend_" name "_4", "attend_" name "_mass"}
    BODY("f32_any", DT_F32, 0), BODY("f16_any", DT_F16, 0), BODY("bf16_any", DT_BF16, 0), BODY("f8_any", DT_F8E4M3, 0),
    BODY("f16_64", DT_F16, 64), BODY("f16_128", DT_F16, 128), BODY("f16_256", DT_F16, 256),
    BODY("bf16_64", DT_BF16, 64), BODY("bf16_128", DT_BF16, 128), BODY("bf16_256", DT_BF16, 256),
    BODY("f8_64", DT_F8E4M3, 64), BODY("f8_128", DT_F8E4M3, 128), BODY("f8_256", DT_F8E4M3, 256),
#undef BODY
};

static const body *find_body(int32_t dtype, int32_t head_dim) {
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
    if (bodies[i].dtype == dtype && bodies[i].head_dim == head_dim) return &bodies[i];
  return NULL;
}

static int64_t n_entries(const tide_attend_args *a) { return a->list ? a->n_list : a->n_blocks; }

/* Blocks of a cluster: enough that few rows fill a device, while each has 128 tokens. Depends on the geometry alone. */
static unsigned cluster_of(const tide_attend_args *a, const kernel_caps *caps, int64_t n_blocks) {
  int64_t listed = n_entries(a) * a->block_size, n_tokens = listed < a->n_tokens ? listed : a->n_tokens;
  unsigned cluster = 1, most = caps->level == 90 ? 16 : caps->level > 90 ? 8 : 1;
  while (cluster < most && n_blocks * cluster < 256 && n_tokens >= 256 * (int64_t)cluster) cluster *= 2;
  return cluster;
}

static int launches(const tide_attend_args *a, const kernel_caps *caps, const body *b, kernel_launch *out) {
  int32_t group = a->n_q_heads / a->n_kv_heads, heads = group > 1 ? 4 : 1;
  int64_t n_blocks = (int64_t)a->n_rows * a->n_kv_heads * ((group - 1) / heads + 1), n_masses = a->n_rows * n_entries(a);
  unsigned cluster = cluster_of(a, caps, n_blocks);
  if (n_blocks == 0) return 0;
  out[0] = (kernel_launch){.fatbin = "attend", .entry = heads > 1 ? b->four : b->one, .cluster = cluster > 1 ? cluster : 0,
                           .grid = {(unsigned)n_blocks * cluster, 1, 1}, .block = {256, 1, 1}};
  if (!a->mass || n_masses == 0) return 1;
  out[1] = (kernel_launch){.fatbin = "attend", .entry = b->mass, .grid = {(unsigned)n_masses, 1, 1}, .block = {128, 1, 1}};
  return 2;
}

static bool refuse(const void *args, char *why, size_t why_bytes) {
  const tide_attend_args *a = args;
  int64_t most = INT32_MAX / 8, n_heads = (int64_t)a->n_rows * a->n_q_heads, n_masses = a->mass ? a->n_rows * n_entries(a) : 0;
  if (n_heads <= most && n_masses <= INT32_MAX) return false;
  snprintf(why, why_bytes, "rows x heads must be at most %lld, rows x blocks %d with mass (got %lld and %lld)", (long long)most,
           INT32_MAX, (long long)n_heads, (long long)n_masses);
  return true;
}

static int plan(const void *args, const kernel_caps *caps, kernel_launch *out) {
  const tide_attend_args *a = args;
  return launches(a, caps, find_body(a->kv_dtype, 0), out);
}

static bool refuse_wide(const void *args, char *why, size_t why_bytes) {
  const tide_attend_args *a = args;
  int64_t strides = a->k_block_stride | a->k_token_stride | a->k_head_stride | a->v_block_stride | a->v_token_stride | a->v_head_stride;
  if (refuse(args, why, why_bytes)) return true;
  if (!find_body(a->kv_dtype, a->head_dim))
    snprintf(why, why_bytes, "wide loads take f16, bf16 and f8e4m3 with a head_dim of 64, 128 or 256 (got dtype %d and %d)",
             a->kv_dtype, a->head_dim);
  else if (strides % 8 || (uintptr_t)a->k % 16 || (uintptr_t)a->v % 16)
    snprintf(why, why_bytes, "strides of k and v must be multiples of 8, both aligned to 16 bytes");
  else return false;
  return true;
}

static int plan_wide(const void *args, const kernel_caps *caps, kernel_launch *out) {
  const tide_attend_args *a = args;
  return launches(a, caps, find_body(a->kv_dtype, a->head_dim), out);
}

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
#ifndef KERNEL_NO_SIMD
    {.name = "v3", .backend = KERNEL_CPU, .level = CPU_V3, .run = attend_v3},
    {.name = "v4", .backend = KERNEL_CPU, .level = CPU_V4, .run = attend_v4},
#endif
    {.name = "cuda", .backend = KERNEL_CUDA, .level = 80, .refuse = refuse, .plan = plan},
    {.name = "cuda_wide", .backend = KERNEL_CUDA, .level = 80, .refuse = refuse_wide, .plan = plan_wide},
};

const kernel kernel_attend = {.name = "attend", .args_bytes = sizeof(tide_attend_args), .check = check, .n_phases = 2,
                              .n_items = n_items, .n_variants = sizeof variants / sizeof *variants, .variants = variants};
