/* rank.c: the one total order of scores on the host. */
#include <stdlib.h>
#include "base.h"

/* Ascending keys are the order "larger score first, NaN last, lower index first": the score's bits made monotone and
 * inverted above the index. */
static uint64_t order_key(float score, int32_t index) {
  uint32_t bits = 0, mono;
  if (score != score) return (uint64_t)UINT32_MAX << 32 | (uint32_t)index;
  if (score != 0) memcpy(&bits, &score, sizeof bits);
  mono = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (uint64_t)~mono << 32 | (uint32_t)index;
}

static int by_key(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static int by_id(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

int32_t tide_topk(const float *scores, int32_t n, int32_t k, int32_t *ids) {
  if (k > n) k = n;
  if (!scores || !ids || k <= 0) return 0;
  uint64_t *keys = malloc((size_t)n * sizeof *keys);
  if (!keys) return 0;
  for (int32_t i = 0; i < n; i++) keys[i] = order_key(scores[i], i);
  qsort(keys, (size_t)n, sizeof *keys, by_key);
  for (int32_t i = 0; i < k; i++) ids[i] = (int32_t)(uint32_t)keys[i];
  qsort(ids, (size_t)k, sizeof *ids, by_id);
  free(keys);
  return k;
}
