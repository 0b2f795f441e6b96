/* attend_simd.c: attend with head_dim in the lanes. LANES tokens at a time: their products with the query are transposed
 * and summed to one vector of logits, which updates the online softmax once.
 */
#include "attend_row.h"
#include "simd.h"

enum { MAX_DIM = 256 };

/* One row and head: m the maximum so far, l the sum of exp(s - m), o the weighted values. */
typedef struct head_state {
  float q[MAX_DIM], o[MAX_DIM];
  float m, l;
} head_state;

ALWAYS_INLINE vf load(const void *data, int32_t dtype, int64_t at, int n) {
  return n >= LANES ? vf_load_as(data, dtype, at) : vf_load_some(data, dtype, at, n);
}

static void load_query(const tide_attend_args *a, int64_t row, int h, float *q) {
  load_row(a->q, a->q_dtype, row * a->q_row_stride + h * a->q_head_stride, a->head_dim, q);
}

/* Where token 0 of a pool block's head begins. */
static int64_t key_at(const tide_attend_args *a, int64_t pool, int h) {
  return pool * a->k_block_stride + h / (a->n_q_heads / a->n_kv_heads) * a->k_head_stride;
}
static int64_t value_at(const tide_attend_args *a, int64_t pool, int h) {
  return pool * a->v_block_stride + h / (a->n_q_heads / a->n_kv_heads) * a->v_head_stride;
}

/* Logits of n <= LANES tokens from k_at on; -infinity in the spare lanes. */
ALWAYS_INLINE vf logits(const tide_attend_args *a, int32_t dtype, const float *q, int64_t k_at, int n) {
  vf sum[LANES], total;
  float lanes[LANES];
  for (int t = 0; t < LANES; t++) sum[t] = vf_set(0);
  for (int t = 0; t < n; t++)
    for (int d = 0; d < a->head_dim; d += LANES)
      sum[t] = vf_fma(vf_load(q + d), load(a->k, dtype, k_at + t * a->k_token_stride + d, a->head_dim - d), sum[t]);
  vf_transpose(sum);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) sum[i] = sum[i] + sum[i + width];
  total = vf_set(a->scale) * sum[0];
  if (n == LANES) return total;
  vf_store(lanes, total);
  for (int t = n; t < LANES; t++) lanes[t] = -INFINITY;
  return vf_load(lanes);
}

/* Adds n <= LANES tokens. A NaN logit stays out of m, reaches l and o, and so spoils its row and head. */
ALWAYS_INLINE void add_tokens(const tide_attend_args *a, int32_t dtype, int64_t k_at, int64_t v_at, int n, head_state *s) {
  vf x = logits(a, dtype, s->q, k_at, n);
  float high = fmaxf(s->m, vf_top(vf_number_or(x, vf_set(-INFINITY)))), base = high == -INFINITY ? 0 : high;
  float weights[LANES], keep[LANES];
  vf_store(weights, vf_exp(x - vf_set(base)));
  vf_store(keep, vf_exp(vf_set(s->m - base)));
  s->l = s->l * keep[0] + vf_sum(vf_load(weights));
  s->m = high;
  for (int d = 0; d < a->head_dim; d += LANES) {
    vf o = vf_load(s->o + d) * vf_set(keep[0]);
    for (int t = 0; t < n; t++)
      o = vf_fma(vf_set(weights[t]), load(a->v, dtype, v_at + t * a->v_token_stride + d, a->head_dim - d), o);
    vf_store(s->o + d, o);
  }
}

ALWAYS_INLINE void attend_head(const tide_attend_args *a, int32_t dtype, int64_t row, int h) {
  head_state s = {.m = -INFINITY};
  int64_t n = a->list ? a->n_list : a->n_blocks, pool = 0, at = row * a->n_q_heads + h;
  load_query(a, row, h, s.q);
  for (int64_t i = 0; i < n; i++) {
    int64_t j = a->list ? a->list[row * a->list_stride + i] : i;
    int n_tokens = tokens_of(a, row, j, &pool);
    for (int t = 0; t < n_tokens; t += LANES)
      add_tokens(a, dtype, key_at(a, pool, h) + t * a->k_token_stride, value_at(a, pool, h) + t * a->v_token_stride,
                 n_tokens - t < LANES ? n_tokens - t : LANES, &s);
  }
  for (int d = 0; a->out && d < a->head_dim; d++) a->out[at * a->head_dim + d] = s.l == 0 ? 0 : a->v_scale * (s.o[d] / s.l);
  if (a->lse) a->lse[at] = s.l == 0 ? -INFINITY : s.m + logf(s.l);
}

ALWAYS_INLINE void mass_of_block(const tide_attend_args *a, int32_t dtype, int64_t row, int64_t j) {
  float total = 0, q[MAX_DIM];
  int64_t pool = 0;
  int n_tokens = in_list(a, row, j) ? tokens_of(a, row, j, &pool) : 0;
  for (int h = 0; n_tokens && h < a->n_q_heads; h++) {
    vf lse = vf_set(a->lse[row * a->n_q_heads + h]);
    load_query(a, row, h, q);
    for (int t = 0; t < n_tokens; t += LANES)
      total += vf_sum(vf_exp(logits(a, dtype, q, key_at(a, pool, h) + t * a->k_token_stride,
                                    n_tokens - t < LANES ? n_tokens - t : LANES) - lse));
  }
  a->mass[row * a->n_blocks + j] = total / (float)a->n_q_heads;
}

ALWAYS_INLINE void run(const tide_attend_args *a, int32_t dtype, int phase, int64_t first, int64_t last) {
  for (int64_t item = first; item < last; item++) {
    if (phase == 0) attend_head(a, dtype, item / a->n_q_heads, (int)(item % a->n_q_heads));
    else mass_of_block(a, dtype, item / a->n_blocks, item % a->n_blocks);
  }
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
