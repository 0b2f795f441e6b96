/* predictor_settings.c: from settings to sizes; what is wrong with them; whether they fit. */
#include <math.h>
#include "predictor.h"
#include "../kernels/score_blocks.h"

#define REFUSE(...) return tide_fail_into(error, error_bytes, TIDE_EINVAL, __VA_ARGS__)

static tide_status check_geometry(const tide_predictor_settings *s, char *error, int64_t error_bytes) {
  if (s->n_layers < 1) REFUSE("n_layers: must be 1 or more (got %d)", s->n_layers);
  if (s->n_blocks < 1) REFUSE("n_blocks: must be 1 or more (got %d)", s->n_blocks);
  if (s->block_size < 1) REFUSE("block_size: must be 1 or more (got %d)", s->block_size);
  if (s->n_kv_heads < 1) REFUSE("n_kv_heads: must be 1 or more (got %d)", s->n_kv_heads);
  if (s->n_q_heads < 1 || s->n_q_heads % s->n_kv_heads)
    REFUSE("n_q_heads: must be a multiple of n_kv_heads (got %d and %d)", s->n_q_heads, s->n_kv_heads);
  if (s->head_dim < 1 || s->head_dim > 256) REFUSE("head_dim: out of range (got %d, want 1..256)", s->head_dim);
  if (s->max_rows < 1) REFUSE("max_rows: must be 1 or more (got %d)", s->max_rows);
  return TIDE_OK;
}

static tide_status check_choices(const tide_predictor_settings *s, char *error, int64_t error_bytes) {
  if (s->summary < 0 || s->summary > TIDE_SUMMARY_MINMAX) REFUSE("summary: unknown (got %d, want 0..2)", s->summary);
  if (s->projection < 0 || s->projection > TIDE_PROJECTION_CALIBRATED)
    REFUSE("projection: unknown (got %d, want 0..2)", s->projection);
  if (s->aggregate < 0 || s->aggregate > TIDE_AGGREGATE_MAX) REFUSE("aggregate: unknown (got %d, want 0 or 1)", s->aggregate);
  bool identity = s->projection == TIDE_PROJECTION_IDENTITY;
  if (identity && s->rank != s->head_dim)
    REFUSE("rank: the identity has that of head_dim (got %d, want %d, or a projection)", s->rank, s->head_dim);
  if (!identity && (s->rank < 1 || s->rank > 128)) REFUSE("rank: out of range (got %d, want 1..128)", s->rank);
  if ((s->k_map || s->q_map) && s->projection != TIDE_PROJECTION_CALIBRATED)
    REFUSE("k_map, q_map: only a calibrated projection has them (got projection %d, want %d)", s->projection,
           TIDE_PROJECTION_CALIBRATED);
  if (!(s->softmax_scale > 0) || isinf(s->softmax_scale))
    REFUSE("softmax_scale: must be positive and finite (got %g)", s->softmax_scale);
  return TIDE_OK;
}

static void fill_defaults(tide_predictor_settings *s) {
  if (s->n_layers == 0) s->n_layers = 1;
  if (s->block_size == 0) s->block_size = 16;
  if (s->max_rows == 0) s->max_rows = 8;
  if (s->rank == 0) s->rank = s->projection == TIDE_PROJECTION_IDENTITY ? s->head_dim : 32;
  if (s->seed == 0) s->seed = 0xCAFEF00D;
  if (s->softmax_scale == 0) s->softmax_scale = 1 / sqrt(s->head_dim > 0 ? s->head_dim : 1);
}

/* The most that score_blocks asks for: its scratch grows with rows and blocks. */
static int64_t scratch_values(const tide_predictor_settings *s, int32_t entries) {
  tide_score_blocks_args args = {
      .n_rows = s->max_rows, .n_q_heads = s->n_q_heads, .n_kv_heads = s->n_kv_heads, .rank = s->rank, .n_entries = entries,
      .n_pool = s->n_blocks, .n_blocks = s->n_blocks, .minmax = s->summary == TIDE_SUMMARY_MINMAX,
      .mass = s->aggregate == TIDE_AGGREGATE_MASS};
  return kernel_score_blocks.scratch ? kernel_score_blocks.scratch(&args) : 0;
}

#define PART(id, by, type, ...)                                                                                    \
  out->parts[id] = (predictor_part){.setting = by, .dtype = type, .n_dims = COUNT_OF(((int64_t[]){__VA_ARGS__})), \
                                    .shape = {__VA_ARGS__}}

static void list_parts(predictor_layout *out) {
  const tide_predictor_settings *s = &out->s;
  bool records = !s->no_predict, mapped = s->projection != TIDE_PROJECTION_IDENTITY;
  bool chunked = records && s->summary != TIDE_SUMMARY_TOKENS && (mapped || s->k_mean);
  PART(PART_VECTORS, "n_blocks", TIDE_BF16, s->n_layers, records ? s->n_blocks : 0, s->n_kv_heads, out->entries, s->rank);
  PART(PART_WRITTEN, "n_blocks", TIDE_U8, s->n_layers, records ? s->n_blocks : 0);
  PART(PART_K_MAPS, "rank", TIDE_BF16, mapped ? out->map_layers : 0, out->n_maps, s->head_dim, s->rank);
  PART(PART_Q_MAPS, "rank", TIDE_BF16, s->q_map ? out->map_layers : 0, out->n_maps, s->head_dim, s->rank);
  PART(PART_BIAS, "rank", TIDE_F32, s->k_mean ? s->n_layers : 0, s->n_kv_heads, s->rank);
  PART(PART_QUERIES, "max_rows", TIDE_BF16, records ? s->max_rows : 0, s->n_q_heads, s->rank);
  PART(PART_SCRATCH, "max_rows", TIDE_F32, records ? scratch_values(s, out->entries) : 0);
  PART(PART_STAGING, "block_size", TIDE_F32, records ? s->n_layers : 0, s->block_size, s->n_kv_heads, s->head_dim);
  PART(PART_CHUNK, "block_size", TIDE_BF16, chunked ? CHUNK_BLOCKS : 0, s->n_kv_heads, s->block_size, s->rank);
  PART(PART_CHUNK_WRITTEN, "block_size", TIDE_U8, chunked ? CHUNK_BLOCKS : 0);
}

static bool part_bytes(predictor_part *part) {
  part->bytes = dtype_bytes(part->dtype);
  for (int i = 0; i < part->n_dims; i++)
    if (!mul_size(part->bytes, part->shape[i], &part->bytes)) return false;
  return true;
}

tide_status predictor_layout_of(const tide_predictor_settings *settings, predictor_layout *out, char *error,
                                int64_t error_bytes) {
  if (!settings) REFUSE("settings: required (got NULL)");
  *out = (predictor_layout){.s = *settings};
  fill_defaults(&out->s);
  TRY(check_geometry(&out->s, error, error_bytes));
  TRY(check_choices(&out->s, error, error_bytes));
  int32_t summary = out->s.summary;
  out->entries = summary == TIDE_SUMMARY_TOKENS ? out->s.block_size : summary == TIDE_SUMMARY_MINMAX ? 2 : 1;
  out->map_layers = out->s.projection == TIDE_PROJECTION_CALIBRATED ? out->s.n_layers : 1;
  out->n_maps = out->s.projection == TIDE_PROJECTION_CALIBRATED || out->s.k_mean ? out->s.n_kv_heads : 1;
  list_parts(out);
  int64_t total = 0;
  for (int i = 0; i < N_PARTS; i++)
    if (!part_bytes(&out->parts[i]) || !add_size(total, out->parts[i].bytes, &total))
      return tide_fail_into(error, error_bytes, TIDE_ERANGE, "%s: its memory passes 2^63 bytes; lower it",
                            out->parts[i].setting);
  return TIDE_OK;
}

tide_status predictor_admit(const predictor_layout *layout, int64_t free_bytes, char *error, int64_t error_bytes) {
  const tide_predictor_settings *s = &layout->s;
  int64_t need = layout->parts[PART_VECTORS].bytes;
  int64_t budget = free_bytes < 0 ? 0 : free_bytes / 100 * 95 + free_bytes % 100 * 95 / 100;
  if (need <= budget) return TIDE_OK;
  bool identity = s->projection == TIDE_PROJECTION_IDENTITY;
  return tide_fail_into(
      error, error_bytes, TIDE_EMEM,
      "predictor: its vectors do not fit in 95 %% of the free memory (got %.3f GiB = %lld bytes, want at most %.3f GiB = %lld "
      "bytes); lower rank (%d; %d takes half%s), or n_blocks (%d; half the sequence limit takes half), or free memory "
      "with a narrower KV dtype or a lower memory utilisation of the engine; bytes = n_layers %d * n_blocks %d * n_kv_heads "
      "%d * entries %d * rank %d * 2",
      (double)need / 0x1p30, (long long)need, (double)budget / 0x1p30, (long long)budget, s->rank, s->rank / 2,
      identity ? ", with a projection" : "", s->n_blocks, s->n_layers, s->n_blocks, s->n_kv_heads, layout->entries, s->rank);
}

tide_status tide_predictor_measure(const tide_predictor_settings *settings, tide_predictor_sizes *out, char *error,
                                   int64_t error_bytes) {
  predictor_layout layout;
  if (!out) REFUSE("sizes: required (got NULL)");
  TRY(predictor_layout_of(settings, &layout, error, error_bytes));
  tide_predictor_sizes sizes = {
      .vectors_bytes = layout.parts[PART_VECTORS].bytes, .entries = layout.entries, .rank = layout.s.rank,
      .bytes_per_token = 2.0 * layout.entries * layout.s.rank / layout.s.block_size};
  for (int i = 0; i < N_PARTS; i++) sizes.scratch_bytes += i == PART_VECTORS ? 0 : layout.parts[i].bytes;
  *out = sizes;
  return TIDE_OK;
}

tide_status tide_predictor_admit(const tide_predictor_settings *settings, int64_t free_bytes, char *error,
                                 int64_t error_bytes) {
  predictor_layout layout;
  TRY(predictor_layout_of(settings, &layout, error, error_bytes));
  return predictor_admit(&layout, free_bytes, error, error_bytes);
}
