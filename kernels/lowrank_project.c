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
    snprintf(why, why_bytes, "n_heads must be a multiple of n_maps, block_size 1 or more, n_blocks 0 or more (got %d, %d, %d, %d)",
             a->n_heads, a->n_maps, a->block_size, a->n_blocks);
  else return false;
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

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
#ifndef KERNEL_NO_SIMD
    {.name = "v3", .backend = KERNEL_CPU, .level = CPU_V3, .run = lowrank_project_v3},
    {.name = "v4", .backend = KERNEL_CPU, .level = CPU_V4, .run = lowrank_project_v4},
#endif
};

const kernel kernel_lowrank_project = {
    .name = "lowrank_project", .args_bytes = sizeof(tide_lowrank_project_args), .check = check, .n_phases = 1,
    .n_items = n_items, .n_variants = sizeof variants / sizeof *variants, .variants = variants};
