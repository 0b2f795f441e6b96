/* sum_simd.c: sum with eight accumulators, enough to hide the latency of an addition. */
#include "simd.h"
#include "sum.h"

enum { WAYS = 8 };

static float sum_of(const float *x, int64_t n) {
  vf sums[WAYS];
  float rest = 0;
  int64_t i = 0;
  for (int way = 0; way < WAYS; way++) sums[way] = vf_set(0);
  for (; i + WAYS * LANES <= n; i += WAYS * LANES)
    for (int way = 0; way < WAYS; way++) sums[way] = sums[way] + vf_load(x + i + way * LANES);
  for (; i < n; i++) rest += x[i];
  for (int way = 1; way < WAYS; way++) sums[0] = sums[0] + sums[way];
  return vf_sum(sums[0]) + rest;
}

void SIMD_NAME(sum)(const void *args, int phase, int64_t first, int64_t last) {
  const tide_sum_args *a = args;
  (void)phase;
  for (int64_t p = first; p < last; p++) {
    int64_t left = a->n - p * a->piece;
    a->out[p] = left > 0 ? sum_of(a->x + p * a->piece, left < a->piece ? left : a->piece) : 0;
  }
}
