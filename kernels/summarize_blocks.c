/* summarize_blocks.c: reference and variants of summarize_blocks (see summarize_blocks.h). */
#include <stdio.h>
#include "numeric.h"
#include "summarize_blocks.h"

static bool check(const void *args, char *why, size_t why_bytes) {
  const tide_summarize_blocks_args *a = args;
  if (a->x_dtype != DT_F32 && a->x_dtype != DT_F16 && a->x_dtype != DT_BF16)
    snprintf(why, why_bytes, "x_dtype must be f32, f16 or bf16 (got %d)", a->x_dtype);
  else if (a->n_blocks < 0 || a->block_size < 1 || a->n_heads < 1 || a->dim < 1)
    snprintf(why, why_bytes, "block_size, n_heads and dim must be 1 or more, n_blocks 0 or more (got %d, %d, %d, %d)",
             a->block_size, a->n_heads, a->dim, a->n_blocks);
  else return false;
  return true;
}

static int64_t n_items(const void *args, int phase) {
  (void)phase;
  return ((const tide_summarize_blocks_args *)args)->n_blocks;
}

static void summarize_dim(const tide_summarize_blocks_args *a, int64_t x_at, uint16_t *y) {
  float sum = 0, low = bits_f32(0x7fc00000u), high = low;
  for (int t = 0; t < a->block_size; t++) {
    float x = load_f32(a->x, a->x_dtype, x_at + t * a->x_token_stride);
    sum += x;
    low = fminf(low, x);
    high = fmaxf(high, x);
  }
  y[0] = f32_to_bf16(a->minmax ? low : sum / (float)a->block_size);
  if (a->minmax) y[a->dim] = f32_to_bf16(high);
}

static void ref(const void *args, int phase, int64_t first, int64_t last) {
  const tide_summarize_blocks_args *a = args;
  int n_entries = a->minmax ? 2 : 1;
  (void)phase;
  for (int64_t b = first; b < last; b++) {
    int64_t xb = a->x_blocks ? a->x_blocks[b] : b, yb = a->y_blocks ? a->y_blocks[b] : a->first_y + b;
    if (xb < 0 || xb >= a->n_x_blocks || yb < 0 || yb >= a->n_y_blocks) continue;
    if (a->x_written && !a->x_written[xb]) continue;
    for (int h = 0; h < a->n_heads; h++)
      for (int d = 0; d < a->dim; d++)
        summarize_dim(a, xb * a->x_block_stride + h * a->x_head_stride + d,
                      a->y + (yb * a->n_heads + h) * n_entries * a->dim + d);
    if (a->written) a->written[yb] = 1;
  }
}

/* ---- geometry of summarize_blocks.cu ---- */

static int launch(const tide_summarize_blocks_args *a, const char *entry, int width, kernel_launch *out) {
  int64_t n = (int64_t)a->n_blocks * a->n_heads * (a->dim / width);
  if (n == 0) return 0;
  *out = (kernel_launch){.fatbin = "summarize_blocks", .entry = entry, .grid = {(unsigned)((n + 127) / 128), 1, 1},
                         .block = {128, 1, 1}};
  return 1;
}

static int plan(const void *args, const kernel_caps *caps, kernel_launch *out) {
  const tide_summarize_blocks_args *a = args;
  (void)caps;
  return launch(a, a->x_dtype == DT_F32 ? "summarize_blocks_f32" : a->x_dtype == DT_F16 ? "summarize_blocks_f16"
                                                                                        : "summarize_blocks_bf16", 1, out);
}

static int wide(const tide_summarize_blocks_args *a) { return a->x_dtype == DT_F32 ? 4 : 8; }

static bool refuse_wide(const void *args, char *why, size_t why_bytes) {
  const tide_summarize_blocks_args *a = args;
  int width = wide(a);
  bool fits = a->dim % width == 0 && a->x_block_stride % width == 0 && a->x_token_stride % width == 0 &&
              a->x_head_stride % width == 0 && (uintptr_t)a->x % 16 == 0 && (uintptr_t)a->y % (uintptr_t)(2 * width) == 0;
  if (!fits) snprintf(why, why_bytes, "dim and the strides of x must be multiples of %d, x and y aligned to 16 bytes", width);
  return !fits;
}

static int plan_wide(const void *args, const kernel_caps *caps, kernel_launch *out) {
  const tide_summarize_blocks_args *a = args;
  (void)caps;
  return launch(a, a->x_dtype == DT_F32 ? "summarize_blocks_f32_wide" : a->x_dtype == DT_F16 ? "summarize_blocks_f16_wide"
                   : "summarize_blocks_bf16_wide", wide(a), out);
}

#ifndef KERNEL_NO_SIMD
void summarize_blocks_v3(const void *args, int phase, int64_t first, int64_t last);
void summarize_blocks_v4(const void *args, int phase, int64_t first, int64_t last);
#endif

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
#ifndef KERNEL_NO_SIMD
    {.name = "v3", .backend = KERNEL_CPU, .level = CPU_V3, .run = summarize_blocks_v3},
    {.name = "v4", .backend = KERNEL_CPU, .level = CPU_V4, .run = summarize_blocks_v4},
#endif
    {.name = "cuda", .backend = KERNEL_CUDA, .level = 80, .plan = plan},
    {.name = "cuda_wide", .backend = KERNEL_CUDA, .level = 80, .refuse = refuse_wide, .plan = plan_wide},
};

const kernel kernel_summarize_blocks = {
    .name = "summarize_blocks", .args_bytes = sizeof(tide_summarize_blocks_args), .check = check, .n_phases = 1,
    .n_items = n_items, .n_variants = sizeof variants / sizeof *variants, .variants = variants};
