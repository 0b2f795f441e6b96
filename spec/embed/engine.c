/* An inference engine's view of tide, whole: its own key memory, a predictor over it, and a policy from a file
 * that says which blocks of the cache should go.
 *
 *     cc -std=c11 engine.c $(pkg-config --cflags --libs tide_lua)
 *     ./a.out my_policy.lua             # without a file: lua/tide/policy/keep_mass.lua
 *
 * It checks what it prints and ends with exit code 0 when all is as it should be. */
#include <stdio.h>
#include <stdlib.h>
#include "tide.h"

enum { N_BLOCKS = 64, BLOCK = 16, N_Q_HEADS = 4, N_KV_HEADS = 2, HEAD_DIM = 64, NEEDLE = 37, N_STAY = 13 };

static void check(int good, const char *what, const char *why) {
  if (good) return;
  fprintf(stderr, "engine: %s: %s\n", what, why);
  exit(1);
}

/* The engine's KV pool: noise, but for one block whose keys point where the query looks. */
static void fill_keys(float *keys, float *query) {
  uint32_t state = 1;
  for (int i = 0; i < N_Q_HEADS * HEAD_DIM; i++) query[i] = i % 3 ? 0.5f : -0.5f;
  for (int i = 0; i < N_BLOCKS * BLOCK * N_KV_HEADS * HEAD_DIM; i++) {
    state = state * 1664525u + 1013904223u;
    int block = i / (BLOCK * N_KV_HEADS * HEAD_DIM), group = i / HEAD_DIM % N_KV_HEADS, dim = i % HEAD_DIM;
    float wanted = query[group * (N_Q_HEADS / N_KV_HEADS) * HEAD_DIM + dim];
    keys[i] = (float)(state >> 8) / (float)(1 << 24) - 0.5f + (block == NEEDLE ? wanted : 0);
  }
}

static void give_back(void *n_released) { ++*(int *)n_released; }

/* Scores every block for one query. The keys stay where they are: tide reads the engine's memory. */
static void score_blocks(tide_ctx *ctx, float *keys, const float *query, float *scores, int *n_released) {
  tide_view k = tide_view_of(TIDE_F32, keys, 4, (int64_t[]){N_BLOCKS, BLOCK, N_KV_HEADS, HEAD_DIM});
  tide_view q = tide_view_of(TIDE_F32, (void *)query, 2, (int64_t[]){N_Q_HEADS, HEAD_DIM});
  tide_view s = tide_view_of(TIDE_F32, scores, 1, (int64_t[]){N_BLOCKS});

  /* A view is enough for a call. Memory that outlives it is wrapped, and given back when the last view has gone. */
  tide_buf *pool, *first_half;
  check(!tide_buf_wrap(ctx, &k, give_back, n_released, &pool), "wrap", tide_errmsg(ctx));
  check(!tide_buf_slice(pool, 0, 0, N_BLOCKS / 2, &first_half), "slice", tide_errmsg(ctx));
  tide_buf_close(pool);
  check(*n_released == 0, "wrap", "memory was given back while a view of it was open");
  tide_buf_close(first_half);
  check(*n_released == 1, "wrap", "memory was not given back once");

  tide_predictor *predictor;
  tide_predictor_settings settings = {.n_blocks = N_BLOCKS, .block_size = BLOCK, .n_q_heads = N_Q_HEADS,
                                      .n_kv_heads = N_KV_HEADS, .head_dim = HEAD_DIM, .summary = TIDE_SUMMARY_MEAN,
                                      .projection = TIDE_PROJECTION_IDENTITY, .aggregate = TIDE_AGGREGATE_MASS};
  tide_score_request all = {.count = N_BLOCKS};
  check(!tide_predictor_open(ctx, &settings, &predictor), "predictor", tide_errmsg(ctx));
  check(!tide_predictor_write(predictor, 0, &k, NULL, NULL, 0, NULL), "write", tide_errmsg(ctx));
  check(!tide_predictor_score(predictor, 0, &q, &all, &s, NULL), "score", tide_errmsg(ctx));
  check(!tide_sync(ctx, TIDE_DEVICE_DEFAULT, NULL), "sync", tide_errmsg(ctx));
  tide_predictor_close(predictor);
}

/* All but N_STAY blocks have to go: which? */
static void choose_victims(tide_ctx *ctx, const char *path, const float *scores, int32_t *victims) {
  tide_policy *policy;
  check(!tide_policy_load_file(ctx, path, &policy), "policy", tide_errmsg(ctx));

  double born[N_BLOCKS];
  for (int i = 0; i < N_BLOCKS; i++) born[i] = i;
  tide_candidates candidates = {.n = N_BLOCKS, .born = born, .score = scores};
  tide_decision report;
  check(!tide_policy_victims(policy, &candidates, N_BLOCKS, N_BLOCKS - N_STAY, victims, &report), "decide",
        tide_errmsg(ctx));
  printf("policy %s (%s)\n", tide_policy_name(policy), tide_policy_describe(policy));
  printf("decided in %.1f us%s\n", report.policy_us, report.used_fallback ? " by the fallback" : "");
  check(!report.used_fallback, "decide", tide_policy_fault(policy));
  check(report.n_victims == N_BLOCKS - N_STAY, "decide", "not as many victims as wanted");
  tide_policy_close(policy);
}

int main(int argc, char **argv) {
  char error[256];
  tide_ctx *ctx;
  check(!tide_ctx_open(NULL, &ctx, error, sizeof error), "context", error);

  float *keys = malloc(sizeof(float) * N_BLOCKS * BLOCK * N_KV_HEADS * HEAD_DIM);
  float query[N_Q_HEADS * HEAD_DIM], scores[N_BLOCKS];
  int32_t victims[N_BLOCKS], n_released = 0;
  check(keys != NULL, "keys", "out of memory");
  fill_keys(keys, query);
  score_blocks(ctx, keys, query, scores, &n_released);
  choose_victims(ctx, argc > 1 ? argv[1] : "lua/tide/policy/keep_mass.lua", scores, victims);
  tide_ctx_close(ctx);
  free(keys);

  int leaves[N_BLOCKS] = {0};
  for (int j = 0; j < N_BLOCKS - N_STAY; j++) {
    check(victims[j] >= 0 && victims[j] < N_BLOCKS && !leaves[victims[j]], "victims", "a slot that is none, or twice");
    leaves[victims[j]] = 1;
  }
  printf("victims:");
  for (int j = 0; j < N_BLOCKS - N_STAY; j++) printf(" %d", victims[j]);
  printf("\nstay:");
  for (int i = 0; i < N_BLOCKS; i++)
    if (!leaves[i]) printf(i == NEEDLE ? " [%d]" : " %d", i);
  printf("\nblock %d, which the query looks for, has %.1f %% of the predicted attention\n", NEEDLE,
         scores[NEEDLE] * 100.0);
  check(argc > 1 || (!leaves[NEEDLE] && !leaves[0] && !leaves[N_BLOCKS - 1]), "victims",
        "what attention reads must stay");
  return 0;
}
