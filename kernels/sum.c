/* sum.c: reference and variants of sum (see sum.h). */
#include <stdio.h>
#include "kernel.h"
#include "sum.h"

static bool check(const void *args, char *why, size_t why_bytes) {
  const tide_sum_args *a = args;
  if (a->n >= 0 && a->n_pieces >= 0 && a->piece >= 0 && a->piece % 4 == 0 && (uintptr_t)a->x % 16 == 0) return false;
  snprintf(why, why_bytes, "n, n_pieces and piece must be 0 or more, piece a multiple of 4, x 16-byte aligned (got %lld, %d, %lld, %p)",
           (long long)a->n, a->n_pieces, (long long)a->piece, (const void *)a->x);
  return true;
}

static int64_t n_items(const void *args, int phase) {
  (void)phase;
  return ((const tide_sum_args *)args)->n_pieces;
}

static void ref(const void *args, int phase, int64_t first, int64_t last) {
  const tide_sum_args *a = args;
  (void)phase;
  for (int64_t p = first; p < last; p++) {
    float sum = 0;
    for (int64_t i = p * a->piece; i < (p + 1) * a->piece && i < a->n; i++) sum += a->x[i];
    a->out[p] = sum;
  }
}

static int plan(const void *args, const kernel_caps *caps, kernel_launch *out) {
  const tide_sum_args *a = args;
  (void)caps;
  if (a->n_pieces == 0) return 0;
  *out = (kernel_launch){.fatbin = "sum", .entry = "sum", .grid = {(unsigned)a->n_pieces, 1, 1}, .block = {512, 1, 1}};
  return 1;
}

#ifndef KERNEL_NO_SIMD
void sum_v3(const void *args, int phase, int64_t first, int64_t last);
void sum_v4(const void *args, int phase, int64_t first, int64_t last);
#endif

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
#ifndef KERNEL_NO_SIMD
    {.name = "v3", .backend = KERNEL_CPU, .level = CPU_V3, .run = sum_v3},
    {.name = "v4", .backend = KERNEL_CPU, .level = CPU_V4, .run = sum_v4},
#endif
    {.name = "cuda", .backend = KERNEL_CUDA, .level = 80, .plan = plan},
};

const kernel kernel_sum = {.name = "sum", .args_bytes = sizeof(tide_sum_args), .check = check, .n_phases = 1,
                           .n_items = n_items, .n_variants = sizeof variants / sizeof *variants, .variants = variants};
