/* lowrank_project_simd.c: lowrank_project with columns of the projection in the lanes. A column's products are summed in the
 * order of the reference: the results equal its bits.
 */
#include "lowrank_project.h"
#include "simd.h"

/* COLUMNS of a map are held as f32 for as long as blocks need them: BATCH blocks take turns with a head's map. */
enum { MAX_DIM = 256, WIDE = 2, COLUMNS = WIDE * LANES, TOKENS = LANES / 2, BATCH = 8 };

typedef struct map_columns {
  float p[MAX_DIM][COLUMNS], bias[COLUMNS];   /* zeros past the last column */
  int map, first, n;                          /* columns first .. first + n - 1 of this map */
} map_columns;

static void load_columns(const tide_lowrank_project_args *a, int map, int first, map_columns *m) {
  if (m->map == map && m->first == first) return;
  m->map = map, m->first = first, m->n = a->rank - first < COLUMNS ? a->rank - first : COLUMNS;
  for (int d = 0; d < a->head_dim; d++) {
    float *to = m->p[d];
    for (int c = m->n - m->n % LANES; c < COLUMNS; c += LANES) vf_store(to + c, vf_set(0));
    load_row(a->p, DT_BF16, ((int64_t)map * a->head_dim + d) * a->rank + first, m->n, to);
  }
  for (int c = 0; c < COLUMNS; c++) m->bias[c] = a->bias && c < m->n ? a->bias[(int64_t)map * a->rank + first + c] : 0;
}

/* n_tokens and wide are constants here: y[t][0 .. n_columns) of tokens x[t][0 .. head_dim). */
ALWAYS_INLINE void project_tokens(const float (*x)[MAX_DIM], int n_tokens, int wide, int head_dim, const map_columns *m,
                                  uint16_t *y, int rank) {
  vf sum[TOKENS][WIDE];
  for (int t = 0; t < n_tokens; t++)
    for (int w = 0; w < wide; w++) sum[t][w] = vf_set(0);
  for (int d = 0; d < head_dim; d++) {
    vf p[WIDE];
    for (int w = 0; w < wide; w++) p[w] = vf_load(m->p[d] + w * LANES);
    for (int t = 0; t < n_tokens; t++) {
      vf element = vf_set(x[t][d]);
      for (int w = 0; w < wide; w++) sum[t][w] = vf_fma(element, p[w], sum[t][w]);
    }
  }
  for (int t = 0; t < n_tokens; t++)
    for (int w = 0; w < wide; w++) {
      int left = m->n - w * LANES;
      if (left > 0) vf_store_bf16(y + t * rank + w * LANES, sum[t][w] - vf_load(m->bias + w * LANES), left < LANES ? left : LANES);
    }
}

/* The tokens of one block and head. y is the place of its first token and column. */
ALWAYS_INLINE void project_head(const tide_lowrank_project_args *a, int32_t x_dtype, int64_t x_at, const map_columns *m,
                                uint16_t *y) {
  float x[TOKENS][MAX_DIM];
  for (int first = 0; first < a->block_size; first += TOKENS) {
    int n = a->block_size - first < TOKENS ? a->block_size - first : TOKENS;
    for (int t = 0; t < n; t++) load_row(a->x, x_dtype, x_at + (first + t) * a->x_token_stride, a->head_dim, x[t]);
    uint16_t *to = y + (int64_t)first * a->rank;
    if (n == TOKENS && m->n > LANES) project_tokens(x, TOKENS, WIDE, a->head_dim, m, to, a->rank);
    else if (n == TOKENS) project_tokens(x, TOKENS, 1, a->head_dim, m, to, a->rank);
    else
      for (int t = 0; t < n; t++) project_tokens(x + t, 1, WIDE, a->head_dim, m, to + t * a->rank, a->rank);
  }
}

/* Without a map: elements less the bias. */
static void copy_head(const tide_lowrank_project_args *a, int64_t x_at, int map, uint16_t *y) {
  float x[MAX_DIM], bias[MAX_DIM] = {0};
  if (a->bias) load_row(a->bias, DT_F32, (int64_t)map * a->rank, a->rank, bias);
  for (int t = 0; t < a->block_size; t++, y += a->rank) {
    load_row(a->x, a->x_dtype, x_at + t * a->x_token_stride, a->rank, x);
    for (int j = 0; j < a->rank; j += LANES)
      vf_store_bf16(y + j, vf_load(x + j) - vf_load(bias + j), a->rank - j < LANES ? a->rank - j : LANES);
  }
}

/* The source and destination of a block; false: an id is out of range. */
static bool block_ids(const tide_lowrank_project_args *a, int64_t b, int64_t *from, int64_t *to) {
  *from = a->x_blocks ? a->x_blocks[b] : b;
  *to = a->y_blocks ? a->y_blocks[b] : a->first_y + b;
  return *from >= 0 && *from < a->n_x_blocks && *to >= 0 && *to < a->n_y_blocks;
}

static void head_of_blocks(const tide_lowrank_project_args *a, int h, int64_t first, int64_t last, map_columns *m) {
  int map = h / (a->n_heads / a->n_maps);
  for (int column = 0; column < a->rank; column += COLUMNS) {
    if (a->p) load_columns(a, map, column, m);
    for (int64_t b = first, xb, yb; b < last; b++) {
      if (!block_ids(a, b, &xb, &yb)) continue;
      int64_t x_at = xb * a->x_block_stride + h * a->x_head_stride;
      uint16_t *y = a->y + (yb * a->n_heads + h) * a->block_size * a->rank;
      if (!a->p && column == 0) copy_head(a, x_at, map, y);
      else if (!a->p) continue;
      else if (a->x_dtype == DT_BF16) project_head(a, DT_BF16, x_at, m, y + column);
      else if (a->x_dtype == DT_F16) project_head(a, DT_F16, x_at, m, y + column);
      else project_head(a, DT_F32, x_at, m, y + column);
    }
  }
}

void SIMD_NAME(lowrank_project)(const void *args, int phase, int64_t first, int64_t last) {
  const tide_lowrank_project_args *a = args;
  map_columns m = {.map = -1};
  (void)phase;
  for (int64_t b = first; b < last; b += BATCH) {
    int64_t end = last - b < BATCH ? last : b + BATCH, xb, yb;
    for (int h = 0; h < a->n_heads; h++) head_of_blocks(a, h, b, end, &m);
    for (int64_t i = b; a->written && i < end; i++)
      if (block_ids(a, i, &xb, &yb)) a->written[yb] = 1;
  }
}
