/* score_blocks.c: reference and variants of score_blocks (see score_blocks.h). */
#include <float.h>
#include <stdio.h>
#include "numeric.h"
#include "score_blocks_row.h"

/* Behind the logits: per row, part of the blocks and head, the log of the sum of exponentials. Heads of the
 * CUDA bodies are padded to a multiple of 4. */
enum { N_PARTS = 1024 };

static int64_t padded_heads(const tide_score_blocks_args *a) {
  return ((int64_t)a->n_q_heads + 3) / 4 * 4;
}

static int64_t scratch(const void *args) {
  const tide_score_blocks_args *a = args;
  if (!a->mass || a->n_rows < 0 || a->n_q_heads < 0 || a->n_blocks < 0) return 0;
  int64_t lists = a->n_rows * padded_heads(a), one = (int64_t)a->n_blocks + N_PARTS;
  return lists > INT64_MAX / one ? INT64_MAX : lists * one;
}

static bool check(const void *args, char *why, size_t why_bytes) {
  const tide_score_blocks_args *a = args;
  if (a->n_q_heads < 1 || a->n_kv_heads < 1 || a->n_q_heads % a->n_kv_heads)
    snprintf(why, why_bytes, "n_q_heads must be a multiple of n_kv_heads (got %d and %d)", a->n_q_heads, a->n_kv_heads);
  else if (a->rank < 1 || a->rank > 256 || a->n_entries < 1 || (a->minmax && a->n_entries != 2))
    snprintf(why, why_bytes, "rank must be 1..256, n_entries 1 or more and 2 with minmax (got %d and %d)", a->rank, a->n_entries);
  else if (a->n_rows < 0 || a->n_blocks < 0 || a->n_pool < 0)
    snprintf(why, why_bytes, "n_rows, n_blocks and n_pool must be 0 or more (got %d, %d, %d)", a->n_rows, a->n_blocks, a->n_pool);
  else if (!a->scratch && scratch(a) > 0)
    snprintf(why, why_bytes, "mass needs scratch (got NULL)");
  else
    return false;
  return true;
}

/* max is done in phase 0; mass: logits, then the log-sum per row and head, then the means. */
static int64_t n_items(const void *args, int phase) {
  const tide_score_blocks_args *a = args;
  if (phase == 1) return a->mass && a->n_blocks ? (int64_t)a->n_rows * a->n_q_heads : 0;
  if (phase == 2 && !a->mass) return 0;
  return (int64_t)a->n_rows * a->n_blocks;
}

static float dot(const uint16_t *q, const uint16_t *k, int rank) {
  float sum = 0;
  for (int j = 0; j < rank; j++) sum = fmaf(bf16_to_f32(q[j]), bf16_to_f32(k[j]), sum);
  return sum;
}

static float bound(const uint16_t *q, const uint16_t *k, int rank) {
  float sum = 0;
  for (int j = 0; j < rank; j++)
    sum += fmaxf(bf16_to_f32(q[j]) * bf16_to_f32(k[j]), bf16_to_f32(q[j]) * bf16_to_f32(k[rank + j]));
  return sum;
}

static float estimate(const tide_score_blocks_args *a, int64_t row, int h, int64_t id, int t) {
  const uint16_t *q = a->q + (row * a->n_q_heads + h) * a->rank;
  int64_t kv = id * a->n_kv_heads + h / (a->n_q_heads / a->n_kv_heads);
  const uint16_t *k = a->keys + (kv * a->n_entries + t) * a->rank;
  return a->minmax ? bound(q, k, a->rank) : dot(q, k, a->rank);
}

static float max_score(const tide_score_blocks_args *a, int64_t row, int64_t id) {
  float best = -INFINITY;
  int n_tokens = a->minmax ? 1 : a->n_entries;
  for (int h = 0; h < a->n_q_heads; h++)
    for (int t = 0; t < n_tokens; t++) {
      float e = estimate(a, row, h, id, t);
      if (e > best) best = e;
    }
  return best;
}

static float logit(const tide_score_blocks_args *a, int64_t row, int h, int64_t id) {
  int n_tokens = a->minmax ? 1 : a->n_entries;
  float high = -INFINITY, sum = 0;
  for (int t = 0; t < n_tokens; t++) high = fmaxf(high, a->scale * estimate(a, row, h, id, t));
  if (high == -INFINITY) return -INFINITY;
  high = fminf(fmaxf(high, -FLT_MAX), FLT_MAX);
  for (int t = 0; t < n_tokens; t++) {
    float e = a->scale * estimate(a, row, h, id, t);
    if (e == e) sum += expf(fminf(e, FLT_MAX) - high);
  }
  return fminf(high + logf(sum), FLT_MAX);
}

static float log_sum(const float *logits, int64_t n) {
  float high = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) high = fmaxf(high, logits[i]);
  if (high == -INFINITY) return -INFINITY;
  for (int64_t i = 0; i < n; i++) sum += expf(logits[i] - high);
  return high + logf(sum);
}

static float mass_score(const tide_score_blocks_args *a, int64_t row, int64_t i) {
  float total = 0;
  for (int h = 0; h < a->n_q_heads; h++) {
    float l = logits_of(a, row, h)[i];
    if (l != -INFINITY) total += expf(l - sums_of(a, row)[h]);
  }
  return total / (float)a->n_q_heads;
}

static void ref(const void *args, int phase, int64_t first, int64_t last) {
  const tide_score_blocks_args *a = args;
  for (int64_t item = first; item < last; item++) {
    if (phase == 1) {
      int64_t row = item / a->n_q_heads;
      int h = (int)(item % a->n_q_heads);
      sums_of(a, row)[h] = log_sum(logits_of(a, row, h), a->n_blocks);
      continue;
    }
    int64_t row = item / a->n_blocks, i = item % a->n_blocks, id = valid_block(a, row, i);
    float *score = a->scores + row * a->scores_stride + i;
    if (phase == 2)
      *score = id < 0 ? -INFINITY : mass_score(a, row, i);
    else if (!a->mass)
      *score = id < 0 ? -INFINITY : max_score(a, row, id);
    else
      for (int h = 0; h < a->n_q_heads; h++) logits_of(a, row, h)[i] = id < 0 ? -INFINITY : logit(a, row, h, id);
  }
}

#ifndef KERNEL_NO_SIMD
void score_blocks_v3(const void *args, int phase, int64_t first, int64_t last);
void score_blocks_v4(const void *args, int phase, int64_t first, int64_t last);

static bool simd_refuses(const void *args, char *why, size_t why_bytes) {
  const tide_score_blocks_args *a = args;
  if (a->n_q_heads <= SCORE_MAX_HEADS && a->n_q_heads * a->rank <= SCORE_MAX_QUERY) return false;
  snprintf(why, why_bytes, "serves up to %d q heads and %d values of a query (got %d x %d)", SCORE_MAX_HEADS, SCORE_MAX_QUERY,
           a->n_q_heads, a->rank);
  return true;
}
#endif

/* ---- CUDA: grid x counts groups of rows, grid y parts of the blocks (score_blocks.cuh) ---- */

enum { CUDA_WARPS = 8, MASS_WARPS = 16 };

static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}
static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static void fill(kernel_launch *out, const char *fatbin, const char *entry, int64_t n_groups, int64_t n_parts, int64_t n_warps,
                 int64_t smem_bytes) {
  *out = (kernel_launch){.fatbin = fatbin,
                         .entry = entry,
                         .grid = {(unsigned)n_groups, (unsigned)n_parts, 1},
                         .block = {(unsigned)n_warps * 32, 1, 1},
                         .smem_bytes = (unsigned)smem_bytes,
                         .overlaps = 1};
}

/* As many parts as keep the device full, and no more than there are units of work for the warps. */
static int64_t n_parts(int64_t n_units, int64_t units_of_a_part, int64_t n_ctas, int64_t n_groups) {
  int64_t most = smaller(ceil_div(n_units, units_of_a_part), N_PARTS);
  return larger(1, smaller(most, ceil_div(n_ctas, n_groups)));
}

static int plan_mass(const tide_score_blocks_args *a, int64_t parts, kernel_launch *out) {
  if (!a->mass) return 1;
  fill(out + 1, "score_blocks_mass", "score_blocks_mass", a->n_rows, parts, MASS_WARPS, padded_heads(a) * 4);
  return 2;
}

static int plan_cuda(const void *args, const kernel_caps *caps, kernel_launch *out) {
  const tide_score_blocks_args *a = args;
  if (!a->n_rows || !a->n_blocks) return 0;
  int64_t parts = n_parts(a->n_blocks, CUDA_WARPS, 8 * caps->n_processors, a->n_rows);
  fill(out, "score_blocks", a->mass ? "score_blocks_logits" : "score_blocks", a->n_rows, parts, CUDA_WARPS, 0);
  return plan_mass(a, parts, out);
}

/* ---- minima and maxima (score_blocks_minmax.cu) ---- */

enum { MINMAX_QUERY_BYTES = 64 * 1024 };

static int64_t query_bytes(const tide_score_blocks_args *a) {
  return (int64_t)a->n_q_heads * a->rank * 2;
}

static bool aligned(const tide_score_blocks_args *a) {
  return ((uintptr_t)a->q | (uintptr_t)a->keys) % 16 == 0;
}

/* Terms are those of the reference, added in another order: an estimate is within rank * 2^-23 * the sum of
 * its terms' magnitudes. */
static bool refuse_minmax(const void *args, char *why, size_t why_bytes) {
  const tide_score_blocks_args *a = args;
  if (!a->minmax)
    snprintf(why, why_bytes, "serves minmax");
  else if (a->rank % 8)
    snprintf(why, why_bytes, "rank must be a multiple of 8 (got %d)", a->rank);
  else if (query_bytes(a) > MINMAX_QUERY_BYTES)
    snprintf(why, why_bytes, "queries must fit %d bytes of shared memory (got %lld)", MINMAX_QUERY_BYTES,
             (long long)query_bytes(a));
  else if (!aligned(a))
    snprintf(why, why_bytes, "q and keys must be aligned to 16 bytes");
  else
    return false;
  return true;
}

static int plan_minmax(const void *args, const kernel_caps *caps, kernel_launch *out) {
  const tide_score_blocks_args *a = args;
  if (!a->n_rows || !a->n_blocks) return 0;
  int64_t parts = n_parts(a->n_blocks, CUDA_WARPS, 4 * caps->n_processors, a->n_rows);
  fill(out, "score_blocks_minmax", a->mass ? "score_blocks_minmax_logits" : "score_blocks_minmax", a->n_rows, parts, CUDA_WARPS,
       query_bytes(a));
  return plan_mass(a, parts, out);
}

/* ---- token keys and mean keys on the tensor cores (score_blocks_mma.cu, score_blocks_mma_any.cu) ---- */

enum {
  MMA_TILE = 16,
  MMA_COLUMNS = 16,
  MMA_CHUNK = 32,
  MMA_WARPS = 8,              /* two CTAs a processor */
  MMA_MASS_WARPS = 16,        /* one, for fewer parts to add up */
  MMA_RING_BYTES = 8 * 1024,  /* a warp's keys on their way */
  MMA_SMEM_BYTES = 96 * 1024, /* what every device since sm_80 holds */
};

/* Rows with one block list share a CTA while their heads of one group fit its columns. */
static int64_t rows_together(const tide_score_blocks_args *a) {
  bool one_list = !a->blocks || !a->blocks_stride;
  return one_list ? larger(1, smaller(a->n_rows, MMA_COLUMNS / (a->n_q_heads / a->n_kv_heads))) : 1;
}

/* A warp's running sums. */
static int64_t state_bytes(const tide_score_blocks_args *a) {
  return a->mass ? rows_together(a) * a->n_q_heads * 8 : 0;
}

/* What both refuse. Products are exact in f32 and summed in another order than the reference's: an estimate is
 * within rank * 2^-23 * sum_j |q_j k_j| of it. A mass is within 2e-6 + 2e-6 * log2(n) of its share besides:
 * exponentials and logarithms of the device's units are within 2^-22. */
static bool refuse_columns(const tide_score_blocks_args *a, int64_t smem_bytes, char *why, size_t why_bytes) {
  int group = a->n_q_heads / a->n_kv_heads;
  if (group > MMA_COLUMNS)
    snprintf(why, why_bytes, "serves up to %d query heads a kv head (got %d)", MMA_COLUMNS, group);
  else if (smem_bytes > MMA_SMEM_BYTES)
    snprintf(why, why_bytes, "queries must fit %d bytes of shared memory (got %lld)", MMA_SMEM_BYTES, (long long)smem_bytes);
  else if (!aligned(a))
    snprintf(why, why_bytes, "q and keys must be aligned to 16 bytes");
  else
    return false;
  return true;
}

/* Queries as the products take them, and per warp its ring and its running sums. */
static int64_t any_smem_bytes(const tide_score_blocks_args *a, int64_t n_warps) {
  int64_t columns = rows_together(a) * (a->n_q_heads / a->n_kv_heads), pairs = 8 % columns ? 8 : columns;
  int64_t queries = a->n_kv_heads * ceil_div(a->rank, MMA_CHUNK) * pairs * 128;
  return queries + n_warps * (MMA_RING_BYTES + state_bytes(a));
}

static bool refuse_mma_any(const void *args, char *why, size_t why_bytes) {
  const tide_score_blocks_args *a = args;
  if (a->minmax || (a->n_entries != 1 && a->n_entries % MMA_TILE))
    snprintf(why, why_bytes, "serves blocks of one key or of a multiple of %d (got %d%s)", MMA_TILE, a->n_entries,
             a->minmax ? ", minmax" : "");
  else if (a->rank % 8)
    snprintf(why, why_bytes, "rank must be a multiple of 8 (got %d)", a->rank);
  else
    return refuse_columns(a, any_smem_bytes(a, 1), why, why_bytes);
  return true;
}

static int plan_mma_any(const void *args, const kernel_caps *caps, kernel_launch *out) {
  static const char *const entries[2][2] = {{"score_blocks_tokens", "score_blocks_tokens_logits"},
                                            {"score_blocks_means", "score_blocks_means_logits"}};
  const tide_score_blocks_args *a = args;
  if (!a->n_rows || !a->n_blocks) return 0;
  bool means = a->n_entries == 1;
  int64_t n_groups = ceil_div(a->n_rows, rows_together(a)), n_ctas = 2 * caps->n_processors, warps = MMA_WARPS;
  while (warps > 1 && any_smem_bytes(a, warps) > MMA_SMEM_BYTES) warps /= 2;
  int64_t parts =
      means ? n_parts(ceil_div(a->n_blocks, MMA_TILE), 1, n_ctas, n_groups) : n_parts(a->n_blocks, warps, n_ctas, n_groups);
  fill(out, "score_blocks_mma_any", entries[means][a->mass != 0], n_groups, parts, warps, any_smem_bytes(a, warps));
  return plan_mass(a, parts, out);
}

/* Queries, those of ranks 64 and 128 apart by 64 bytes for the banks, and per warp its running sums. */
static int64_t mma_smem_bytes(const tide_score_blocks_args *a) {
  int64_t query = 2 * a->rank + (a->rank % 64 ? 0 : 64);
  return rows_together(a) * a->n_q_heads * query + (a->mass ? MMA_MASS_WARPS : MMA_WARPS) * state_bytes(a);
}

static bool refuse_mma(const void *args, char *why, size_t why_bytes) {
  const tide_score_blocks_args *a = args;
  int r = a->rank;
  if (a->minmax || a->n_entries % MMA_TILE)
    snprintf(why, why_bytes, "serves blocks of a multiple of %d keys (got %d%s)", MMA_TILE, a->n_entries,
             a->minmax ? ", minmax" : "");
  else if (r != 16 && r != 32 && r != 64 && r != 128)
    snprintf(why, why_bytes, "rank must be 16, 32, 64 or 128 (got %d)", r);
  else
    return refuse_columns(a, mma_smem_bytes(a), why, why_bytes);
  return true;
}

static int plan_mma(const void *args, const kernel_caps *caps, kernel_launch *out) {
  static const char *const entries[2][4] = {
      {"score_blocks_mma_16", "score_blocks_mma_32", "score_blocks_mma_64", "score_blocks_mma_128"},
      {"score_blocks_mma_logits_16", "score_blocks_mma_logits_32", "score_blocks_mma_logits_64", "score_blocks_mma_logits_128"}};
  const tide_score_blocks_args *a = args;
  if (!a->n_rows || !a->n_blocks) return 0;
  bool mass = a->mass != 0;
  int which = a->rank == 16 ? 0 : a->rank == 32 ? 1 : a->rank == 64 ? 2 : 3;
  int64_t n_groups = ceil_div(a->n_rows, rows_together(a)), warps = mass ? MMA_MASS_WARPS : MMA_WARPS;
  int64_t parts = n_parts(a->n_blocks, warps, (mass ? 1 : 2) * caps->n_processors, n_groups);
  fill(out, "score_blocks_mma", entries[mass][which], n_groups, parts, warps, mma_smem_bytes(a));
  return plan_mass(a, parts, out);
}

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
#ifndef KERNEL_NO_SIMD
    {.name = "v3", .backend = KERNEL_CPU, .level = CPU_V3, .refuse = simd_refuses, .run = score_blocks_v3},
    {.name = "v4", .backend = KERNEL_CPU, .level = CPU_V4, .refuse = simd_refuses, .run = score_blocks_v4},
#endif
    {.name = "cuda", .backend = KERNEL_CUDA, .level = 80, .plan = plan_cuda},
    {.name = "minmax", .backend = KERNEL_CUDA, .level = 80, .refuse = refuse_minmax, .plan = plan_minmax},
    {.name = "mma_any", .backend = KERNEL_CUDA, .level = 80, .refuse = refuse_mma_any, .plan = plan_mma_any},
    {.name = "mma", .backend = KERNEL_CUDA, .level = 80, .refuse = refuse_mma, .plan = plan_mma},
};

const kernel kernel_score_blocks = {.name = "score_blocks",
                                    .args_bytes = sizeof(tide_score_blocks_args),
                                    .check = check,
                                    .n_phases = 3,
                                    .n_items = n_items,
                                    .scratch = scratch,
                                    .n_variants = sizeof variants / sizeof *variants,
                                    .variants = variants};
