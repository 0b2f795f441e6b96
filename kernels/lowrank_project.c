/* lowrank_project.c: reference and variants of lowrank_project (see lowrank_project.h). */
#include <stdio.h>
#include "lowrank_project.h"
#include "numeric.h"

static bool check(const void *args, char *why, size_t why_bytes) {
  const tide_lowrank_project_args *a = args;
  if (a->x_dtype != DT_F32 && a->x_dtype != DT_F16 && a->x_dtype != DT_BF16)
    snprintf(why, why_bytes, "x_dtype must be f32, f16 or bf16 (got %d)", a->x_dtype);
  else if (a->head_dim < 1 || a->head_dim > 256 || a->rank < 1 || a->rank > 256 || (!a->p && a->rank != a->head_dim))
    snprintf(why, why_bytes, "head_dim and rank must be 1..256, and equal without p (got %d and %d)", a->head_dim, a->rank);
  else if (a->n_blocks < 0 || a->block_size < 1 || a->n_heads < 1 || a->n_maps < 1 || a->n_heads % a->n_maps)
    snprintf(why, why_bytes,
             "n_heads must be a multiple of n_maps, block_size 1 or more, n_blocks 0 or more (got %d, %d, %d, %d)", a->n_heads,
             a->n_maps, a->block_size, a->n_blocks);
  else
    return false;
  return true;
}

static int64_t n_items(const void *args, int phase) {
  (void)phase;
  return ((const tide_lowrank_project_args *)args)->n_blocks;
}

static void project_token(const tide_lowrank_project_args *a, const void *x, int64_t x_at, int map, uint16_t *y) {
  for (int j = 0; j < a->rank; j++) {
    float sum = 0;
    if (!a->p) sum = load_f32(x, a->x_dtype, x_at + j);
    for (int d = 0; a->p && d < a->head_dim; d++)
      sum = fmaf(load_f32(x, a->x_dtype, x_at + d), bf16_to_f32(a->p[((int64_t)map * a->head_dim + d) * a->rank + j]), sum);
    y[j] = f32_to_bf16(a->bias ? sum - a->bias[(int64_t)map * a->rank + j] : sum);
  }
}

static void ref(const void *args, int phase, int64_t first, int64_t last) {
  const tide_lowrank_project_args *a = args;
  (void)phase;
  for (int64_t b = first; b < last; b++) {
    int64_t xb = a->x_blocks ? a->x_blocks[b] : b, yb = a->y_blocks ? a->y_blocks[b] : a->first_y + b;
    if (xb < 0 || xb >= a->n_x_blocks || yb < 0 || yb >= a->n_y_blocks) continue;
    for (int h = 0; h < a->n_heads; h++)
      for (int t = 0; t < a->block_size; t++)
        project_token(a, a->x, xb * a->x_block_stride + t * a->x_token_stride + h * a->x_head_stride,
                      h / (a->n_heads / a->n_maps), a->y + ((yb * a->n_heads + h) * a->block_size + t) * a->rank);
    if (a->written) a->written[yb] = 1;
  }
}

#ifndef KERNEL_NO_SIMD
void lowrank_project_v3(const void *args, int phase, int64_t first, int64_t last);
void lowrank_project_v4(const void *args, int phase, int64_t first, int64_t last);
#endif

/* ---- CUDA ---- */

/* MMA_MAP_BYTES: the largest map that every device since sm_80 holds in shared memory beside a warp's ring. */
enum { MMA_MAP_BYTES = 72 * 1024, MMA_TILE = 16, MMA_WARPS = 8, SPREAD_WARPS = 4, RESERVED_BYTES = 1024 };

static int64_t map_bytes(const tide_lowrank_project_args *a) {
  return (int64_t)a->head_dim * (a->rank + 8) * 2 + a->rank * 4;
}

/* What a warp has on its way: struct ring of lowrank_project_mma.cu. */
static int64_t ring_bytes(const tide_lowrank_project_args *a) {
  return a->head_dim > 128 ? 16384 : 8192;
}

static int64_t n_tiles(const tide_lowrank_project_args *a) {
  int64_t rows = (int64_t)a->n_heads / a->n_maps * a->block_size;
  return (rows + MMA_TILE - 1) / MMA_TILE * a->n_blocks;
}

static bool aligned(const tide_lowrank_project_args *a) {
  uintptr_t at = (uintptr_t)a->x | (uintptr_t)a->p | (uintptr_t)a->y;
  return at % 16 == 0 && (a->x_block_stride | a->x_token_stride | a->x_head_stride) % 8 == 0;
}

/* Products are exact in f32 and summed in another order than the reference's: y is within one bf16 ulp of it, or, where
 * terms cancel, within head_dim * 2^-23 times the sum of the terms' magnitudes, whichever is more. */
static bool refuse_mma(const void *args, char *why, size_t why_bytes) {
  const tide_lowrank_project_args *a = args;
  if (!a->p || a->x_dtype != DT_BF16)
    snprintf(why, why_bytes, "needs p, and x in bf16 (got dtype %d)", a->x_dtype);
  else if (a->head_dim != 64 && a->head_dim != 128 && a->head_dim != 256)
    snprintf(why, why_bytes, "serves head_dim 64, 128 and 256 (got %d)", a->head_dim);
  else if (a->rank % 16)
    snprintf(why, why_bytes, "rank must be a multiple of 16 (got %d)", a->rank);
  else if (map_bytes(a) > MMA_MAP_BYTES)
    snprintf(why, why_bytes, "the map of a head must fit %d bytes of shared memory (got %lld)", MMA_MAP_BYTES,
             (long long)map_bytes(a));
  else if (a->n_maps > 65535)
    snprintf(why, why_bytes, "serves up to 65535 maps (got %d)", a->n_maps);
  else if (n_tiles(a) > INT32_MAX)
    snprintf(why, why_bytes, "serves up to 2^31 - 1 tiles (got %lld)", (long long)n_tiles(a));
  else if (!aligned(a))
    snprintf(why, why_bytes, "x, p, y and the strides of x must be multiples of 16 bytes");
  else
    return false;
  return true;
}

static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* As many warps as shared memory has rings for, and as many CTAs as a processor holds, up to three. */
static void plan_stream(const tide_lowrank_project_args *a, const kernel_caps *caps, kernel_launch *out) {
  static const char *const entries[2][3] = {
      {"lowrank_project_mma_64_16", "lowrank_project_mma_128_16", "lowrank_project_mma_256_16"},
      {"lowrank_project_mma_64_32", "lowrank_project_mma_128_32", "lowrank_project_mma_256_32"}};
  int64_t warps = MMA_WARPS;
  while (warps > 1 && map_bytes(a) + warps * ring_bytes(a) > caps->smem_bytes) warps /= 2;
  int64_t smem_bytes = map_bytes(a) + warps * ring_bytes(a);
  int64_t resident = smaller(a->head_dim > 128 ? 1 : 3, larger(1, caps->smem_bytes / (smem_bytes + RESERVED_BYTES)));
  out->entry = entries[a->rank % 32 == 0][a->head_dim / 128];
  out->grid[0] = (unsigned)smaller((n_tiles(a) + warps - 1) / warps, larger(1, resident * caps->n_processors / a->n_maps));
  out->block[0] = (unsigned)warps * 32;
  out->smem_bytes = (unsigned)smem_bytes;
}

static int plan_mma(const void *args, const kernel_caps *caps, kernel_launch *out) {
  static const char *const spread[] = {"lowrank_project_spread_64", "lowrank_project_spread_128", "lowrank_project_spread_256"};
  const tide_lowrank_project_args *a = args;
  if (!a->n_blocks) return 0;
  int64_t n_tasks = n_tiles(a) * (a->rank / 8);
  *out = (kernel_launch){.fatbin = "lowrank_project_mma", .overlaps = 1};
  if (n_tasks * a->n_maps <= 16 * caps->n_processors) {
    out->entry = spread[a->head_dim / 128];
    out->grid[0] = (unsigned)((n_tasks + SPREAD_WARPS - 1) / SPREAD_WARPS);
    out->block[0] = SPREAD_WARPS * 32;
  } else
    plan_stream(a, caps, out);
  out->grid[1] = (unsigned)a->n_maps;
  out->grid[2] = out->block[1] = out->block[2] = 1;
  return 1;
}

static int plan_cuda(const void *args, const kernel_caps *caps, kernel_launch *out) {
  const tide_lowrank_project_args *a = args;
  enum { N_WARPS = 8 };
  if (!a->n_blocks) return 0;
  int64_t items = (int64_t)a->n_heads * a->block_size * ((a->rank + 31) / 32);
  int64_t per_block = smaller((items + N_WARPS - 1) / N_WARPS, larger(1, 8 * caps->n_processors / a->n_blocks));
  *out = (kernel_launch){.fatbin = "lowrank_project",
                         .entry = "lowrank_project",
                         .overlaps = 1,
                         .grid = {(unsigned)a->n_blocks, (unsigned)per_block, 1},
                         .block = {N_WARPS * 32, 1, 1}};
  return 1;
}

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
#ifndef KERNEL_NO_SIMD
    {.name = "v3", .backend = KERNEL_CPU, .level = CPU_V3, .run = lowrank_project_v3},
    {.name = "v4", .backend = KERNEL_CPU, .level = CPU_V4, .run = lowrank_project_v4},
#endif
    {.name = "cuda", .backend = KERNEL_CUDA, .level = 80, .plan = plan_cuda},
    {.name = "mma", .backend = KERNEL_CUDA, .level = 80, .refuse = refuse_mma, .plan = plan_mma},
};

const kernel kernel_lowrank_project = {.name = "lowrank_project",
                                       .args_bytes = sizeof(tide_lowrank_project_args),
                                       .check = check,
                                       .n_phases = 1,
                                       .n_items = n_items,
                                       .n_variants = sizeof variants / sizeof *variants,
                                       .variants = variants};
