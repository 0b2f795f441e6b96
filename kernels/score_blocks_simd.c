/* score_blocks_simd.c: score_blocks with one token (or one block, where a block has few entries) a lane.
 *
 * A tile is WIDE times LANES rows of keys. Their 32-bit pairs are transposed in registers, so that lane l of pair i holds
 * elements 2i and 2i + 1 of row l; then every q head of the kv head multiplies each pair with a broadcast query. The
 * products of a lane are summed in the order of the reference: estimates, and the max of them, equal its bits. Two vectors
 * side by side share each broadcast and hide the latency of the sums.
 */
#include <float.h>
#include "score_blocks_row.h"
#include "simd.h"

enum { MAX_PAIRS = 128, WIDE = 2, TILE = WIDE * LANES };

typedef struct wide { vf part[WIDE]; } wide;
typedef struct wide_pairs { vi part[WIDE]; } wide_pairs;

typedef struct tile {
  const uint16_t *row[TILE];    /* the row of kv head 0 in each lane; spare lanes repeat the first */
  int n_blocks, n_tokens;       /* lane = block * n_tokens + token */
  int64_t next;                 /* elements from here to the next tile, where ids are consecutive */
} tile;

static int n_tokens_of(const tide_score_blocks_args *a) { return a->minmax ? 1 : a->n_entries; }

static int64_t block_stride(const tide_score_blocks_args *a) { return (int64_t)a->n_kv_heads * a->n_entries * a->rank; }

/* n_blocks > 1 only where whole blocks share a tile. */
static void make_tile(const tide_score_blocks_args *a, const int64_t *ids, int n_blocks, int first_token, tile *t) {
  int left = n_tokens_of(a) - first_token, lane = 0;
  t->n_blocks = n_blocks;
  t->n_tokens = left < TILE ? left : TILE;
  for (int i = 0; i < n_blocks; i++) {
    const uint16_t *row = a->keys + ids[i] * block_stride(a) + (int64_t)first_token * a->rank;
    for (int j = 0; j < t->n_tokens; j++, row += a->rank) t->row[lane++] = row;
  }
  t->next = n_blocks * block_stride(a);
  for (; lane < TILE; lane++) t->row[lane] = t->row[0];
}

/* pairs[i] lane l = elements 2i, 2i + 1 of row l, the second 0 past an odd rank. Pools are read in order more often than
 * not, and the tile after the next one is not fetched by itself. */
ALWAYS_INLINE void load_pairs(const tile *t, int64_t offset, int rank, wide_pairs *pairs) {
  for (int part = 0; part < WIDE; part++)
    for (int first = 0; first < rank; first += 2 * LANES) {
      vi v[LANES];
      int n = rank - first < 2 * LANES ? rank - first : 2 * LANES;
      for (int lane = 0; lane < LANES; lane++) {
        const uint16_t *from = t->row[part * LANES + lane] + offset + first;
        __builtin_prefetch(from + 2 * t->next, 0, 2);
        v[lane] = vi_load_halves(from, n);
      }
      vi_transpose(v);
      for (int i = 0; i < LANES && 2 * i < n; i++) pairs[first / 2 + i].part[part] = v[i];
    }
}

/* The estimates of n <= 4 heads for every lane. q [n][2 * n_pairs]. */
ALWAYS_INLINE void dots(const float *q, int n, const wide_pairs *pairs, int n_pairs, wide *estimates) {
  vf sum[4][WIDE];
  for (int h = 0; h < n; h++)
    for (int part = 0; part < WIDE; part++) sum[h][part] = vf_set(0);
  for (int i = 0; i < n_pairs; i++) {
    vf low[WIDE], high[WIDE];
    for (int part = 0; part < WIDE; part++) {
      low[part] = vf_of_low_bf16(pairs[i].part[part]);
      high[part] = vf_of_high_bf16(pairs[i].part[part]);
    }
    for (int h = 0; h < n; h++) {
      vf even = vf_set(q[2 * (h * n_pairs + i)]), odd = vf_set(q[2 * (h * n_pairs + i) + 1]);
      for (int part = 0; part < WIDE; part++) {
        sum[h][part] = vf_fma(even, low[part], sum[h][part]);
        sum[h][part] = vf_fma(odd, high[part], sum[h][part]);
      }
    }
  }
  for (int h = 0; h < n; h++)
    for (int part = 0; part < WIDE; part++) estimates[h].part[part] = sum[h][part];
}

static void dots_of_heads(const float *q, int n_heads, const wide_pairs *pairs, int n_pairs, wide *estimates) {
  int h = 0;
  for (; h + 4 <= n_heads; h += 4) dots(q + h * 2 * n_pairs, 4, pairs, n_pairs, estimates + h);
  q += h * 2 * n_pairs, estimates += h;
  if (n_heads - h == 3) dots(q, 3, pairs, n_pairs, estimates);
  if (n_heads - h == 2) dots(q, 2, pairs, n_pairs, estimates);
  if (n_heads - h == 1) dots(q, 1, pairs, n_pairs, estimates);
}

/* fmaxf: the other one when one is NaN. */
ALWAYS_INLINE vf larger(vf a, vf b) { return vf_max(a, vf_number_or(b, a)); }

static void bounds_of_heads(const float *q, int n_heads, const wide_pairs *low, const wide_pairs *high, int n_pairs,
                            wide *estimates) {
  for (int h = 0; h < n_heads; h++, q += 2 * n_pairs)
    for (int part = 0; part < WIDE; part++) {
      vf sum = vf_set(0);
      for (int i = 0; i < n_pairs; i++) {
        vf even = vf_set(q[2 * i]), odd = vf_set(q[2 * i + 1]);
        vi least = low[i].part[part], most = high[i].part[part];
        sum = sum + larger(even * vf_of_low_bf16(least), even * vf_of_low_bf16(most));
        sum = sum + larger(odd * vf_of_high_bf16(least), odd * vf_of_high_bf16(most));
      }
      estimates[h].part[part] = sum;
    }
}

/* The estimates of the q heads of one kv head for every lane. q [n_q_heads][rank, to an even number]. */
ALWAYS_INLINE void estimate(const tide_score_blocks_args *a, const float *q, const tile *t, int kv, wide *estimates) {
  int group = a->n_q_heads / a->n_kv_heads, n_pairs = (a->rank + 1) / 2;
  int64_t offset = (int64_t)kv * a->n_entries * a->rank;
  wide_pairs pairs[MAX_PAIRS];
  q += (int64_t)kv * group * 2 * n_pairs;
  load_pairs(t, offset, a->rank, pairs);
  if (!a->minmax) {
    dots_of_heads(q, group, pairs, n_pairs, estimates);
    return;
  }
  wide_pairs high[MAX_PAIRS];
  load_pairs(t, offset + a->rank, a->rank, high);
  bounds_of_heads(q, group, pairs, high, n_pairs, estimates);
}

/* ---- max --------------------------------------------------------------------------------------------------------- */

/* Scores of n blocks; n > 1 only where they share a tile. */
static void max_of_blocks(const tide_score_blocks_args *a, const float *q, const int64_t *ids, int n, float *scores) {
  int n_tokens = n_tokens_of(a), used = n_tokens < TILE ? n_tokens : TILE;
  wide best, estimates[SCORE_MAX_HEADS];
  float lanes[TILE];
  for (int part = 0; part < WIDE; part++) best.part[part] = vf_set(-INFINITY);
  for (int first = 0; first < n_tokens; first += TILE) {
    tile t;
    make_tile(a, ids, n, first, &t);
    for (int kv = 0; kv < a->n_kv_heads; kv++) {
      estimate(a, q, &t, kv, estimates);
      for (int h = 0; h < a->n_q_heads / a->n_kv_heads; h++)
        for (int part = 0; part < WIDE; part++) best.part[part] = vf_max(estimates[h].part[part], best.part[part]);
    }
  }
  for (int part = 0; part < WIDE; part++) vf_store(lanes + part * LANES, best.part[part]);
  for (int i = 0; i < n; i++) {
    scores[i] = -INFINITY;
    for (int t = 0; t < used; t++)
      if (lanes[i * used + t] > scores[i]) scores[i] = lanes[i * used + t];
  }
}

/* ---- mass -------------------------------------------------------------------------------------------------------- */

/* The log-sum-exp so far of LANES heads, one block: high + log(sum). */
typedef struct state { vf high, sum; } state;

static state add_tokens(state s, const vf *x, int n) {
  vf high = s.high;
  for (int t = 0; t < n; t++) high = vf_max(x[t], high);
  vf base = vf_min(vf_max(high, vf_set(-FLT_MAX)), vf_set(FLT_MAX));
  vf sum = s.sum * vf_exp(vf_max(s.high, vf_set(-FLT_MAX)) - base);
  for (int t = 0; t < n; t++) sum = sum + vf_number_or(vf_exp(vf_min(vf_set(FLT_MAX), x[t]) - base), vf_set(0));
  return (state){.high = vf_min(high, vf_set(FLT_MAX)), .sum = sum};
}

static vf logit_of(state s) {
  vf value = vf_min(vf_max(s.high, vf_set(-FLT_MAX)) + vf_log(s.sum), vf_set(FLT_MAX));
  return vf_where_equal(s.high, vf_set(-INFINITY), vf_set(-INFINITY), value);
}

/* Adds a tile's tokens for LANES heads from head on: lanes become heads. estimates [n_q_heads]. */
static void add_tile(const tide_score_blocks_args *a, const tile *t, const wide *estimates, int head, state *states) {
  vf x[TILE];
  for (int part = 0; part < WIDE; part++) {
    for (int i = 0; i < LANES; i++)
      x[part * LANES + i] = vf_set(a->scale) * estimates[head + i < a->n_q_heads ? head + i : head].part[part];
    vf_transpose(x + part * LANES);
  }
  for (int i = 0; i < t->n_blocks; i++) states[i] = add_tokens(states[i], x + i * t->n_tokens, t->n_tokens);
}

/* logits[block] [n_q_heads, to a multiple of LANES] */
static void logits_of_blocks(const tide_score_blocks_args *a, const float *q, const int64_t *ids, int n,
                             float (*const *logits)[SCORE_MAX_HEADS]) {
  wide estimates[SCORE_MAX_HEADS];
  state states[SCORE_MAX_HEADS / LANES][TILE];
  int n_chunks = (a->n_q_heads + LANES - 1) / LANES;
  for (int c = 0; c < n_chunks; c++)
    for (int i = 0; i < n; i++) states[c][i] = (state){.high = vf_set(-INFINITY), .sum = vf_set(0)};
  for (int first = 0; first < n_tokens_of(a); first += TILE) {
    tile t;
    make_tile(a, ids, n, first, &t);
    for (int kv = 0; kv < a->n_kv_heads; kv++) estimate(a, q, &t, kv, estimates + kv * (a->n_q_heads / a->n_kv_heads));
    for (int c = 0; c < n_chunks; c++) add_tile(a, &t, estimates, c * LANES, states[c]);
  }
  for (int c = 0; c < n_chunks; c++)
    for (int i = 0; i < n; i++) vf_store(*logits[i] + c * LANES, logit_of(states[c][i]));
}

/* Log of the sum of exp, partial sums lane by lane. */
static float log_sum(const float *logits, int64_t n) {
  vf high = vf_set(-INFINITY), sum = vf_set(0);
  int64_t whole = n - n % LANES;
  float rest[LANES], result[LANES];
  for (int i = 0; i < LANES; i++) rest[i] = whole + i < n ? logits[whole + i] : -INFINITY;
  vf last = vf_load(rest);
  for (int64_t i = 0; i < whole; i += LANES) high = vf_max(vf_load(logits + i), high);
  float top = vf_top(vf_max(last, high));
  if (top == -INFINITY) return -INFINITY;
  for (int64_t i = 0; i < whole; i += LANES) sum = sum + vf_exp(vf_load(logits + i) - vf_set(top));
  vf_store(result, vf_log(vf_set(vf_sum(sum + vf_exp(last - vf_set(top))))));
  return top + result[0];
}

/* Mean share of n <= LANES entries from i on. */
static void shares(const tide_score_blocks_args *a, int64_t row, int64_t i, int n, float out[LANES]) {
  vf total = vf_set(0), none = vf_set(-INFINITY);
  for (int h = 0; h < a->n_q_heads; h++) {
    const float *logits = logits_of(a, row, h) + i;
    vf l = n < LANES ? vf_load_some(logits, DT_F32, 0, n) : vf_load(logits);
    total = total + vf_where_equal(l, none, vf_set(0), vf_exp(l - vf_set(sums_of(a, row)[h])));
  }
  vf_store(out, total / vf_set((float)a->n_q_heads));
}

/* ---- rows and items ---------------------------------------------------------------------------------------------- */

/* Per row: f32 queries [n_q_heads][rank, to an even number]. */
static void load_query(const tide_score_blocks_args *a, int64_t row, float *q) {
  int width = a->rank + a->rank % 2;
  for (int h = 0; h < a->n_q_heads; h++)
    for (int j = 0; j < width; j++)
      q[h * width + j] = j < a->rank ? bf16_to_f32(a->q[(row * a->n_q_heads + h) * a->rank + j]) : 0;
}

/* Entries first .. first + n - 1 of a row, n <= TILE: blocks that share a tile are done together. */
static void score_entries(const tide_score_blocks_args *a, const float *q, int64_t row, int64_t first, int n) {
  float values[TILE][SCORE_MAX_HEADS], (*logits[TILE])[SCORE_MAX_HEADS], scores[TILE];
  int64_t ids[TILE];
  int place[TILE], n_valid = 0, n_tokens = n_tokens_of(a), together = n_tokens < TILE ? TILE / n_tokens : 1;
  for (int i = 0; i < n; i++) {
    int64_t id = valid_block(a, row, first + i);
    if (id < 0 && !a->mass) a->scores[row * a->scores_stride + first + i] = -INFINITY;
    for (int h = 0; id < 0 && a->mass && h < a->n_q_heads; h++) values[i][h] = -INFINITY;
    if (id < 0) continue;
    ids[n_valid] = id, place[n_valid] = i, logits[n_valid++] = &values[i];
  }
  for (int i = 0; i < n_valid; i += together) {
    int count = n_valid - i < together ? n_valid - i : together;
    if (a->mass) logits_of_blocks(a, q, ids + i, count, logits + i);
    else max_of_blocks(a, q, ids + i, count, scores + i);
  }
  for (int i = 0; !a->mass && i < n_valid; i++) a->scores[row * a->scores_stride + first + place[i]] = scores[i];
  for (int h = 0; a->mass && h < a->n_q_heads; h++)
    for (int i = 0; i < n; i++) logits_of(a, row, h)[first + i] = values[i][h];
}

static void mean_entries(const tide_score_blocks_args *a, int64_t row, int64_t first, int n) {
  float mean[LANES];
  for (int done = 0; done < n; done += LANES) {
    int part = n - done < LANES ? n - done : LANES;
    shares(a, row, first + done, part, mean);
    for (int i = 0; i < part; i++)
      a->scores[row * a->scores_stride + first + done + i] = valid_block(a, row, first + done + i) < 0 ? -INFINITY : mean[i];
  }
}

static void log_sums(const tide_score_blocks_args *a, int64_t first, int64_t last) {
  for (int64_t item = first; item < last; item++) {
    int64_t row = item / a->n_q_heads, h = item % a->n_q_heads;
    sums_of(a, row)[h] = log_sum(logits_of(a, row, (int)h), a->n_blocks);
  }
}

void SIMD_NAME(score_blocks)(const void *args, int phase, int64_t first, int64_t last) {
  const tide_score_blocks_args *a = args;
  float q[SCORE_MAX_QUERY + SCORE_MAX_HEADS];
  int64_t loaded = -1;
  if (phase == 1) {
    log_sums(a, first, last);
    return;
  }
  for (int64_t item = first, n; item < last; item += n) {
    int64_t row = item / a->n_blocks, i = item % a->n_blocks;
    n = last - item < a->n_blocks - i ? last - item : a->n_blocks - i;
    if (n > TILE) n = TILE;
    if (phase == 0 && loaded != row) load_query(a, loaded = row, q);
    if (phase == 0) score_entries(a, q, row, i, (int)n);
    else mean_entries(a, row, i, (int)n);
  }
}
