/* attend_simd.c: attend with head_dim in the lanes.
 *
 * LANES tokens at a time: their products with a query are transposed and summed to one vector of logits, which updates the
 * online softmax once. Up to GROUP neighbouring heads that read the same keys share every load; what a head computes does
 * not depend on who its neighbours are.
 */
#include "attend_row.h"
#include "simd.h"

enum { MAX_DIM = 256, GROUP = 4 };

/* One row and n <= GROUP heads: m the maximum so far, l the sum of exp(s - m), o the weighted values. */
typedef struct heads {
  float q[GROUP][MAX_DIM], o[GROUP][MAX_DIM];
  float m[GROUP], l[GROUP], weights[GROUP][LANES];
} heads;

ALWAYS_INLINE vf load(const void *data, int32_t dtype, int64_t at, int n) {
  return n >= LANES ? vf_load_as(data, dtype, at) : vf_load_some(data, dtype, at, n);
}

static int group_of(const tide_attend_args *a) { return a->n_q_heads / a->n_kv_heads; }

static void load_query(const tide_attend_args *a, int64_t row, int h, float *q) {
  load_row(a->q, a->q_dtype, row * a->q_row_stride + h * a->q_head_stride, a->head_dim, q);
}

/* The lanes of sums[t] summed to lane t, times scale, for t < n; -infinity in the others. */
static vf gather_logits(vf sums[LANES], float scale, int n) {
  float lanes[LANES];
  for (int t = n; t < LANES; t++) sums[t] = vf_set(0);
  vf_transpose(sums);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) sums[i] = sums[i] + sums[i + width];
  vf_store(lanes, vf_set(scale) * sums[0]);
  for (int t = n; t < LANES; t++) lanes[t] = -INFINITY;
  return vf_load(lanes);
}

/* Logits of n <= LANES tokens from k_at on for n_heads queries. */
ALWAYS_INLINE void logits(const tide_attend_args *a, int32_t dtype, const float (*q)[MAX_DIM], int n_heads, int64_t k_at, int n,
                          vf *out) {
  vf sums[GROUP][LANES];
  for (int t = 0; t < n; t++) {
    vf sum[GROUP];
    int64_t at = k_at + t * a->k_token_stride;
    for (int h = 0; h < n_heads; h++) sum[h] = vf_set(0);
    for (int d = 0; d < a->head_dim; d += LANES) {
      vf k = load(a->k, dtype, at + d, a->head_dim - d);
      for (int h = 0; h < n_heads; h++) sum[h] = vf_fma(vf_load(q[h] + d), k, sum[h]);
    }
    for (int h = 0; h < n_heads; h++) sums[h][t] = sum[h];
  }
  for (int h = 0; h < n_heads; h++) out[h] = gather_logits(sums[h], a->scale, n);
}

/* Takes n logits of head h into its softmax. A NaN stays out of m, reaches l and o, and so spoils the head. */
ALWAYS_INLINE void add_logits(heads *s, int h, vf x) {
  float high = fmaxf(s->m[h], vf_top(vf_number_or(x, vf_set(-INFINITY)))), base = high == -INFINITY ? 0 : high, keep[LANES];
  vf_store(s->weights[h], vf_exp(x - vf_set(base)));
  vf_store(keep, vf_exp(vf_set(s->m[h] - base)));
  s->l[h] = s->l[h] * keep[0] + vf_sum(vf_load(s->weights[h]));
  s->m[h] = high;
  if (keep[0] == 1) return;
  for (int d = 0; d < MAX_DIM; d += LANES) vf_store(s->o[h] + d, vf_load(s->o[h] + d) * vf_set(keep[0]));
}

ALWAYS_INLINE void add_values(const tide_attend_args *a, int32_t dtype, int64_t v_at, int n, heads *s, int n_heads) {
  for (int d = 0; d < a->head_dim; d += LANES) {
    vf o[GROUP];
    for (int h = 0; h < n_heads; h++) o[h] = vf_load(s->o[h] + d);
    for (int t = 0; t < n; t++) {
      vf v = load(a->v, dtype, v_at + t * a->v_token_stride + d, a->head_dim - d);
      for (int h = 0; h < n_heads; h++) o[h] = vf_fma(vf_set(s->weights[h][t]), v, o[h]);
    }
    for (int h = 0; h < n_heads; h++) vf_store(s->o[h] + d, o[h]);
  }
}

ALWAYS_INLINE void add_block(const tide_attend_args *a, int32_t dtype, int64_t pool, int kv, int n_tokens, heads *s, int n_heads) {
  for (int t = 0; t < n_tokens; t += LANES) {
    int n = n_tokens - t < LANES ? n_tokens - t : LANES;
    vf x[GROUP];
    logits(a, dtype, (const float(*)[MAX_DIM])s->q, n_heads, pool * a->k_block_stride + t * a->k_token_stride + kv * a->k_head_stride,
           n, x);
    for (int h = 0; h < n_heads; h++) add_logits(s, h, x[h]);
    add_values(a, dtype, pool * a->v_block_stride + t * a->v_token_stride + kv * a->v_head_stride, n, s, n_heads);
  }
}

/* n_heads is a constant here: heads h .. h + n_heads - 1 of one kv head. */
ALWAYS_INLINE void attend_heads(const tide_attend_args *a, int32_t dtype, int64_t row, int h, int n_heads) {
  heads s = {.l = {0}};
  int64_t n = a->list ? a->n_list : a->n_blocks, pool = 0, at = row * a->n_q_heads + h;
  for (int i = 0; i < n_heads; i++) s.m[i] = -INFINITY, load_query(a, row, h + i, s.q[i]);
  for (int64_t i = 0; i < n; i++) {
    int64_t j = a->list ? a->list[row * a->list_stride + i] : i;
    int n_tokens = tokens_of(a, row, j, &pool);
    add_block(a, dtype, pool, h / group_of(a), n_tokens, &s, n_heads);
  }
  for (int i = 0; i < n_heads; i++, at++) {
    float *out = a->out ? a->out + at * a->head_dim : NULL;
    for (int d = 0; out && d < a->head_dim; d++) out[d] = s.l[i] == 0 ? 0 : a->v_scale * (s.o[i][d] / s.l[i]);
    if (a->lse) a->lse[at] = s.l[i] == 0 ? -INFINITY : s.m[i] + logf(s.l[i]);
  }
}

/* Heads first .. last - 1 of all rows, those that share a kv head together. */
ALWAYS_INLINE void attend_items(const tide_attend_args *a, int32_t dtype, int64_t first, int64_t last) {
  for (int64_t item = first, n; item < last; item += n) {
    int64_t row = item / a->n_q_heads;
    int h = (int)(item % a->n_q_heads);
    n = group_of(a) - h % group_of(a);
    if (n > last - item) n = last - item;
    if (n >= 4) attend_heads(a, dtype, row, h, 4), n = 4;
    else if (n == 3) attend_heads(a, dtype, row, h, 3);
    else if (n == 2) attend_heads(a, dtype, row, h, 2);
    else attend_heads(a, dtype, row, h, 1);
  }
}

ALWAYS_INLINE void mass_of_block(const tide_attend_args *a, int32_t dtype, int64_t row, int64_t j) {
  float total = 0, q[1][MAX_DIM];
  int64_t pool = 0;
  int n_tokens = in_list(a, row, j) ? tokens_of(a, row, j, &pool) : 0;
  for (int h = 0; n_tokens && h < a->n_q_heads; h++) {
    vf lse = vf_set(a->lse[row * a->n_q_heads + h]), x;
    int64_t k_at = pool * a->k_block_stride + h / group_of(a) * a->k_head_stride;
    load_query(a, row, h, q[0]);
    for (int t = 0; t < n_tokens; t += LANES) {
      logits(a, dtype, (const float(*)[MAX_DIM])q, 1, k_at + t * a->k_token_stride, n_tokens - t < LANES ? n_tokens - t : LANES, &x);
      total += vf_sum(vf_exp(vf_min(vf_set(0), x - lse)));
    }
  }
  a->mass[row * a->n_blocks + j] = total / (float)a->n_q_heads;
}

ALWAYS_INLINE void run(const tide_attend_args *a, int32_t dtype, int phase, int64_t first, int64_t last) {
  if (phase == 0) attend_items(a, dtype, first, last);
  for (int64_t item = first; phase == 1 && item < last; item++) mass_of_block(a, dtype, item / a->n_blocks, item % a->n_blocks);
}

void SIMD_NAME(attend)(const void *args, int phase, int64_t first, int64_t last) {
  const tide_attend_args *a = args;
  switch (a->kv_dtype) {
    case DT_F32: run(a, DT_F32, phase, first, last); break;
    case DT_F16: run(a, DT_F16, phase, first, last); break;
    case DT_BF16: run(a, DT_BF16, phase, first, last); break;
    default: run(a, DT_F8E4M3, phase, first, last); break;
  }
}
