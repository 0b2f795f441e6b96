/* Many contexts, many threads: each thread has a context of its own with a pool of its own, and all get the same scores as
 * a context with one thread. Contexts that never compute start no threads; closing waits for none that sleeps. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tide.h"

enum { N_THREADS = 4, N_TURNS = 50, N_BLOCKS = 96, BLOCK = 16, N_HEADS = 2, HEAD_DIM = 64 };

static float keys[N_BLOCKS * BLOCK * N_HEADS * HEAD_DIM], query[N_HEADS * HEAD_DIM];

static void check(int good, const char *what, const char *why) {
  if (good) return;
  fprintf(stderr, "threads: %s: %s\n", what, why);
  exit(1);
}

static void score(int n_threads, float *scores) {
  tide_ctx *ctx;
  tide_predictor *p;
  char error[256];
  check(!tide_ctx_open(&(tide_ctx_settings){.n_threads = n_threads}, &ctx, error, sizeof error), "open", error);
  tide_predictor_settings settings = {.n_blocks = N_BLOCKS, .n_q_heads = N_HEADS, .n_kv_heads = N_HEADS, .head_dim = HEAD_DIM};
  tide_view k = tide_view_of(TIDE_F32, keys, 4, (int64_t[]){N_BLOCKS, BLOCK, N_HEADS, HEAD_DIM});
  tide_view q = tide_view_of(TIDE_F32, query, 2, (int64_t[]){N_HEADS, HEAD_DIM});
  tide_view s = tide_view_of(TIDE_F32, scores, 1, (int64_t[]){N_BLOCKS});
  check(!tide_predictor_open(ctx, &settings, &p), "predictor", tide_errmsg(ctx));
  check(!tide_predictor_write(p, 0, &k, NULL, NULL, 0, NULL), "write", tide_errmsg(ctx));
  for (int turn = 0; turn < N_TURNS; turn++)
    check(!tide_predictor_score(p, 0, &q, NULL, &s, NULL), "score", tide_errmsg(ctx));
  tide_ctx_close(ctx);
  tide_predictor_close(p);
}

static void *run(void *scores) {
  score(3, scores);
  return NULL;
}

int main(void) {
  static float alone[N_BLOCKS], together[N_THREADS][N_BLOCKS];
  pthread_t threads[N_THREADS];
  uint32_t state = 7;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    keys[i] = (float)((state = state * 1664525u + 1013904223u) >> 8) / (float)(1 << 24) - 0.5f;
  for (size_t i = 0; i < sizeof query / sizeof *query; i++) query[i] = i % 5 ? 0.25f : -1.0f;
  score(1, alone);
  for (int t = 0; t < N_THREADS; t++) check(!pthread_create(&threads[t], NULL, run, together[t]), "thread", "none to be had");
  for (int t = 0; t < N_THREADS; t++) {
    pthread_join(threads[t], NULL);
    check(!memcmp(alone, together[t], sizeof alone), "scores", "they differ from those of one thread");
  }
  printf("%d contexts in %d threads, %d scores each: the same\n", N_THREADS, N_THREADS, N_TURNS);
  return 0;
}
