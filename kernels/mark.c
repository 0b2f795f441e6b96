/* mark.c: reference and variants of mark (see mark.h). */
#include <stdio.h>
#include "kernel.h"
#include "mark.h"

static bool check(const void *args, char *why, size_t why_bytes) {
  const tide_mark_args *a = args;
  if (a->n_rows >= 0 && a->n_marks >= 0 && a->n >= 0 && a->value >= 0 && a->value <= 255) return false;
  snprintf(why, why_bytes, "n_rows, n_marks and n must be 0 or more, value 0..255 (got %d, %d, %d, %d)", a->n_rows, a->n_marks,
           a->n, a->value);
  return true;
}

static int64_t n_items(const void *args, int phase) {
  const tide_mark_args *a = args;
  (void)phase;
  return (int64_t)a->n_rows * a->n;
}

static void ref(const void *args, int phase, int64_t first, int64_t last) {
  const tide_mark_args *a = args;
  (void)phase;
  for (int64_t item = first; item < last; item++) {
    int64_t row = item / a->n, i = item % a->n, id = a->ids ? a->ids[i] : i;
    if (id >= 0 && id < a->n_marks) a->marks[row * a->stride + id] = (uint8_t)a->value;
  }
}

static int plan(const void *args, const kernel_caps *caps, kernel_launch *out) {
  int64_t n = n_items(args, 0);
  (void)caps;
  if (n == 0) return 0;
  *out = (kernel_launch){.fatbin = "mark", .entry = "mark", .grid = {(unsigned)((n + 255) / 256), 1, 1}, .block = {256, 1, 1}};
  return 1;
}

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
    {.name = "cuda", .backend = KERNEL_CUDA, .level = 80, .plan = plan},
};

const kernel kernel_mark = {.name = "mark", .args_bytes = sizeof(tide_mark_args), .check = check, .n_phases = 1,
                            .n_items = n_items, .n_variants = sizeof variants / sizeof *variants, .variants = variants};
