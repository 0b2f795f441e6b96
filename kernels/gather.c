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
  const tide_gather_args *a = args;
  (void)phase;
  return a->row_bytes ? a->n : 0;
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

/* ---- geometry of gather.cu ---- */

/* log2 of the largest word, up to 16 bytes, that every row is made of. */
static int word_of(const tide_gather_args *a) {
  uint64_t all = (uintptr_t)a->dst | (uintptr_t)a->src | (uint64_t)a->dst_stride | (uint64_t)a->src_stride |
                 (uint64_t)a->row_bytes;
  int word = 0;
  while (word < 4 && !(all >> word & 1)) word++;
  return word;
}

/* x runs over the words of a row, y of a block over rows; a thread moves GATHER_WORDS words. */
static int plan(const void *args, const kernel_caps *caps, kernel_launch *out) {
  static const char *const entries[] = {"gather_1", "gather_2", "gather_4", "gather_8", "gather_16"};
  const tide_gather_args *a = args;
  (void)caps;
  if (a->n == 0 || a->row_bytes == 0) return 0;
  int word = word_of(a);
  int64_t n_words = a->row_bytes >> word, lanes = 1;
  while (lanes < 256 && lanes * GATHER_WORDS < n_words) lanes *= 2;
  int64_t rows = 256 / lanes, n_y = (n_words + lanes * GATHER_WORDS - 1) / (lanes * GATHER_WORDS);
  *out = (kernel_launch){.fatbin = "gather", .entry = entries[word],
                         .grid = {(unsigned)((a->n + rows - 1) / rows), (unsigned)(n_y < 65535 ? n_y : 65535), 1},
                         .block = {(unsigned)lanes, (unsigned)rows, 1}};
  return 1;
}

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
    {.name = "cuda", .backend = KERNEL_CUDA, .level = 80, .plan = plan},
};

const kernel kernel_gather = {.name = "gather", .args_bytes = sizeof(tide_gather_args), .check = check, .n_phases = 1,
                              .n_items = n_items, .n_variants = sizeof variants / sizeof *variants, .variants = variants};
