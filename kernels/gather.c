/* gather.c: reference and variants of gather (see gather.h). */
#include <stdio.h>
#include <string.h>
#include "gather.h"
#include "kernel.h"

static bool check(const void *args, char *why, size_t why_bytes) {
  const tide_gather_args *a = args;
  if (a->n >= 0 && a->n_src >= 0 && a->row_bytes >= 0 && (!a->table || (a->page_size > 0 && a->n_table >= 0))) return false;
  snprintf(why, why_bytes, "n, n_src and row_bytes must be 0 or more, page_size 1 or more with a table (got %d, %d, %lld, %d)",
           a->n, a->n_src, (long long)a->row_bytes, a->page_size);
  return true;
}

static int64_t n_items(const void *args, int phase) {
  (void)phase;
  return ((const tide_gather_args *)args)->n;
}

/* The source row of an id, or -1. */
static int64_t source_row(const tide_gather_args *a, int32_t id) {
  int64_t row = id;
  if (id < 0) return -1;
  if (a->table) {
    if (id / a->page_size >= a->n_table || a->table[id / a->page_size] < 0) return -1;
    row = (int64_t)a->table[id / a->page_size] * a->page_size + id % a->page_size;
  }
  return row < a->n_src ? row : -1;
}

static void ref(const void *args, int phase, int64_t first, int64_t last) {
  const tide_gather_args *a = args;
  (void)phase;
  for (int64_t i = first; i < last; i++) {
    int64_t row = source_row(a, a->ids[i]);
    char *dst = (char *)a->dst + i * a->dst_stride;
    if (row < 0) memset(dst, 0, (size_t)a->row_bytes);
    else memcpy(dst, (const char *)a->src + row * a->src_stride, (size_t)a->row_bytes);
  }
}

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
};

const kernel kernel_gather = {.name = "gather", .args_bytes = sizeof(tide_gather_args), .check = check, .n_phases = 1,
                              .n_items = n_items, .n_variants = sizeof variants / sizeof *variants, .variants = variants};
