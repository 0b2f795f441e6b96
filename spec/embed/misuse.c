/* The story: an engine's bug is a view of nowhere, a stride from an overflow, an id from a freed table, a handle of a closed
 * context. Every function has to refuse them and to leave its outputs alone. This program calls at random with such
 * arguments; the sanitized build says what went wrong inside. Memory that a view names is there: nobody can check that.
 * An argument is another seed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tide.h"

enum { N_CALLS = 40000, N_BUFS = 12, ARENA = 1 << 14 };

static uint32_t state = 12345;
static uint32_t next(uint32_t n) { return (state = state * 1664525u + 1013904223u) / 7 % n; }
static int one_in(uint32_t n) { return next(n) == 0; }

static void check(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "misuse: %s\n", what);
  exit(1);
}

static float arena[ARENA];
static tide_ctx *contexts[3];                    /* the last one is closed */
static tide_buf *bufs[N_BUFS];
static tide_predictor *predictors[3];
static int64_t n_ok, n_refused;

static int64_t number(void) {
  static const int64_t nasty[] = {0, 1, -1, 2, 16, INT32_MAX, INT32_MIN, (int64_t)1 << 32, (int64_t)1 << 53, INT64_MAX, INT64_MIN};
  return one_in(3) ? nasty[next(sizeof nasty / sizeof *nasty)] : (int64_t)next(6);
}

/* Views whose elements lie within the arena, or that have to be refused for their own sake. */
static tide_view view(void) {
  static const int64_t shapes[][4] = {{1, 4, 0, 0}, {4, 4, 8, 0}, {32, 2, 8, 0}, {2, 16, 2, 8}, {4, 8, 0, 0}, {4, 0, 0, 0}, {8, 0, 0, 0}};
  static const int32_t n_dims[] = {2, 3, 3, 4, 2, 1, 1};
  uint32_t i = next(7);
  tide_view v = tide_view_of(one_in(4) ? (int32_t)next(9) : one_in(2) ? TIDE_F32 : TIDE_I32, arena, n_dims[i], shapes[i]);
  if (one_in(4)) v.n_dims = (int32_t)number();
  if (one_in(4)) v.shape[next(5)] = one_in(2) ? -(int64_t)next(5) : INT64_MAX - next(3);
  if (one_in(8)) v.stride[next(5)] = one_in(2) ? INT64_MAX : INT64_MIN;
  if (one_in(8)) v.dtype = (int32_t)number();
  if (one_in(8)) v.device = (int32_t)number();
  if (one_in(10)) v.data = NULL;
  return v;
}

static const tide_view *maybe(tide_view *v, uint32_t n) {
  *v = view();
  return one_in(n) ? NULL : v;
}

static tide_ctx *context(void) { return one_in(8) ? NULL : contexts[next(3)]; }
static tide_buf *buf(void) { return one_in(8) ? NULL : bufs[next(N_BUFS)]; }
static tide_predictor *predictor(void) { return one_in(8) ? NULL : predictors[next(3)]; }

static void count(tide_status status) {
  check(status >= TIDE_OK && status <= TIDE_EREENTRY, "a status that does not exist");
  if (status) n_refused++;
  else n_ok++;
}

/* A new buffer goes into the table; a refused one must not have been written. */
static void take(tide_status status, tide_buf *const *out) {
  tide_buf *made = *out;
  count(status);
  check(!status == !!made, "an output of a failed call was touched, or one of a good call was not");
  if (!made) return;
  uint32_t i = next(N_BUFS);
  tide_buf_close(bufs[i]);
  bufs[i] = made;
}

static void call_buffers(void) {
  tide_buf *made = NULL, **out = one_in(20) ? NULL : &made;
  tide_view v = view(), w;
  tide_buf_stats stats;
  int64_t shape[5] = {number(), number(), number(), number(), number()};
  int32_t order[5] = {(int32_t)next(5), (int32_t)next(5), (int32_t)number(), (int32_t)number(), (int32_t)number()};
  tide_buf_settings settings = {.dtype = v.dtype, .n_dims = v.n_dims, .device = v.device};
  memcpy(settings.shape, v.shape, sizeof v.shape);
  switch (next(11)) {
    case 0: take(tide_buf_new(context(), one_in(9) ? NULL : &settings, out), &made); break;
    case 1: take(tide_buf_wrap(context(), one_in(9) ? NULL : &v, NULL, NULL, out), &made); break;
    case 2: take(tide_buf_slice(buf(), (int32_t)number(), number(), number(), out), &made); break;
    case 3: take(tide_buf_index(buf(), number(), out), &made); break;
    case 4: take(tide_buf_reshape(buf(), (int32_t)number(), one_in(9) ? NULL : shape, out), &made); break;
    case 5: take(tide_buf_permute(buf(), one_in(9) ? NULL : order, out), &made); break;
    case 6: count(tide_buf_view(buf(), one_in(9) ? NULL : &w)); break;
    case 7: count(tide_buf_fill(buf(), one_in(2) ? NAN : (double)number(), NULL)); break;
    case 8: count(tide_buf_copy(buf(), buf(), NULL)); break;
    case 9: count(tide_buf_read(buf(), one_in(9) ? NULL : arena, one_in(2) ? number() : 16)); break;
    default: count(tide_buf_describe(buf(), one_in(9) ? NULL : &stats)); break;
  }
}

static void call_predictors(void) {
  tide_view v[4], slot;
  const tide_view *a = maybe(v, 12), *b = maybe(v + 1, 2), *c = maybe(v + 2, 2), *d = maybe(v + 3, 12);
  tide_score_request request = {.blocks = b, .lengths = c, .first = (int32_t)number(), .count = (int32_t)number()};
  int32_t layer = one_in(3) ? (int32_t)number() : 0, written;
  switch (next(6)) {
    case 0: count(tide_predictor_write(predictor(), layer, a, b, c, (int32_t)number(), NULL)); break;
    case 1: count(tide_predictor_append(predictor(), layer, number(), a, b, NULL)); break;
    case 2: count(tide_predictor_forget(predictor(), layer, b, NULL)); break;
    case 3: count(tide_predictor_score(predictor(), layer, a, one_in(3) ? NULL : &request, d, NULL)); break;
    case 4: count(tide_predictor_project(predictor(), layer, a, d, NULL)); break;
    default: count(tide_predictor_slot(predictor(), layer, (int32_t)number(), one_in(9) ? NULL : &slot, one_in(2) ? NULL : &written)); break;
  }
}

static void call_attention(void) {
  tide_view v[9];
  tide_attend_io io = {.q = view(), .k = view(), .v = view(), .table = maybe(v, 2), .positions = maybe(v + 1, 2),
                       .blocks = maybe(v + 2, 2), .out = maybe(v + 3, 3), .lse = maybe(v + 4, 3), .mass = maybe(v + 5, 3),
                       .block_size = one_in(3) ? (int32_t)number() : 0, .first_position = (int32_t)number(),
                       .softmax_scale = one_in(4) ? NAN : 0, .k_scale = (double)number()};
  if (one_in(2)) count(tide_attend(context(), one_in(20) ? NULL : &io, NULL));
  else count(tide_gather(context(), maybe(v + 6, 9), maybe(v + 7, 9), maybe(v + 8, 9), NULL));
}

static void call_settings(void) {
  tide_predictor *p = NULL;
  tide_predictor_sizes sizes;
  char error[64];
  tide_predictor_settings s = {.n_layers = (int32_t)number(), .n_blocks = (int32_t)number(), .block_size = (int32_t)number(),
                               .n_q_heads = (int32_t)number(), .n_kv_heads = (int32_t)number(), .head_dim = (int32_t)number(),
                               .summary = (int32_t)next(4), .projection = (int32_t)next(4), .aggregate = (int32_t)next(3),
                               .rank = (int32_t)number(), .max_rows = (int32_t)next(9), .no_predict = (int32_t)next(2)};
  if (one_in(9)) s.softmax_scale = NAN;
  count(tide_predictor_measure(one_in(9) ? NULL : &s, one_in(9) ? NULL : &sizes, one_in(3) ? NULL : error, one_in(3) ? number() % 65 : 64));
  tide_status status = tide_predictor_open(context(), one_in(9) ? NULL : &s, one_in(9) ? NULL : &p);
  count(status);
  check(!status == !!p, "an output of a failed call was touched, or one of a good call was not");
  tide_predictor_close(p);
}

static void call_rest(void) {
  tide_device_info info;
  tide_mem_line lines[2];
  tide_event *event = NULL;
  tide_graph *graph = NULL;
  void *stream = NULL;
  double us;
  int32_t n;
  switch (next(10)) {
    case 0: count(tide_device_probe((int32_t)number(), one_in(9) ? NULL : &info)); break;
    case 1: count(tide_device_describe(context(), (int32_t)number(), one_in(9) ? NULL : &info)); break;
    case 2: count(tide_stream_new(context(), (int32_t)number(), one_in(9) ? NULL : &stream)); break;
    case 3: count(tide_sync(context(), (int32_t)number(), NULL)); break;
    case 4: count(tide_event_new(context(), (int32_t)number(), one_in(9) ? NULL : &event)); break;
    case 5: count(tide_graph_end(context(), (int32_t)number(), NULL, one_in(9) ? NULL : &graph)); break;
    case 6: count(tide_mem_lines(context(), one_in(9) ? NULL : lines, (int32_t)(number() % 3), one_in(9) ? NULL : &n)); break;
    case 7: count(tide_mem_check(context(), (int32_t)number(), number(), one_in(2) ? NULL : "label", one_in(2) ? NULL : "setting")); break;
    case 8: count(tide_device_open(context(), one_in(3) ? NULL : one_in(2) ? "cpu:1" : "cuda:-1", one_in(9) ? NULL : &n)); break;
    default: count(tide_event_elapsed_us(NULL, NULL, &us)); break;
  }
  tide_event_close(event);
  tide_graph_close(graph);
}

static void open_all(void) {
  tide_predictor_settings s = {.n_blocks = 4, .n_q_heads = 4, .n_kv_heads = 2, .head_dim = 8};
  for (int i = 0; i < 3; i++) {
    check(!tide_ctx_open(&(tide_ctx_settings){.n_threads = 1, .host_limit_bytes = 1 << 26}, &contexts[i], NULL, 0), "open");
    check(!tide_predictor_open(contexts[i], &s, &predictors[i]), "predictor");
  }
  for (int i = 0; i < N_BUFS; i++) {
    tide_view v = tide_view_of(TIDE_F32, NULL, 2, (int64_t[]){4, 4});
    tide_buf_settings settings = {.dtype = v.dtype, .n_dims = 2, .shape = {4, 4}};
    check(!tide_buf_new(contexts[i % 3], &settings, &bufs[i]), "buffer");
  }
  tide_ctx_close(contexts[2]);
}

static void close_all(void) {
  for (int i = 0; i < N_BUFS; i++) tide_buf_close(bufs[i]);
  for (int i = 0; i < 3; i++) tide_predictor_close(predictors[i]);
  tide_ctx_close(contexts[0]);
  tide_ctx_close(contexts[1]);
}

int main(int argc, char **argv) {
  if (argc > 1) state = (uint32_t)atoi(argv[1]);
  void (*const calls[])(void) = {call_buffers, call_buffers, call_predictors, call_predictors, call_attention, call_attention,
                                 call_settings, call_rest};
  char error[64];
  check(tide_ctx_open(NULL, NULL, error, sizeof error) == TIDE_EINVAL, "a context without a place to go");
  check(tide_ctx_open(&(tide_ctx_settings){.device = "no such"}, contexts, NULL, 5) == TIDE_EINVAL, "a device that is none");
  open_all();
  for (int i = 0; i < N_CALLS; i++) calls[next(8)]();
  close_all();
  check(n_ok > N_CALLS / 20, "next to no call was good");
  printf("%lld calls refused, %lld served\n", (long long)n_refused, (long long)n_ok);
  return 0;
}
