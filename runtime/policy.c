/* policy.c: a decision: the caller's columns in, a script's opinion of them, the order that C makes of it, and
 * tail-first LRU where the script fails. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "ctx.h"
#include "policy.h"

#pragma weak tide_lua_policy_host

/* The compiler of Lua needs time that grows with the square of a text made for that (9 s for 1 MiB), and no watchdog
 * looks into it. */
enum { PRACTICE_N = 4096, STRIKES_IN_ROW = 3, MAX_SOURCE_BYTES = 1 << 17, SCRIPT_MEMORY_BYTES = 16 << 20 };
static const double default_budget_us = 5000;

/* Bytes of a candidate over all columns. */
enum { COLUMN_BYTES = 3 * 8 + 5 * 4 + 1 };

struct tide_policy {
  tide_ctx *ctx;
  char *name;
  const policy_host *host;
  void *script;
  policy_columns columns;
  void *memory;                                  /* of the columns */
  int32_t columns_line, script_line;             /* of the ledger; -1: none */
  double budget_us;
  bool running, off, kept;                       /* kept: keep holds the script's word on the last decision */
  int32_t n_strikes, n_in_row;
  char fault[4096];
};

/* ---- columns ---------------------------------------------------------------------------------------------------- */

static void lay_out(policy_columns *c, void *memory, int32_t capacity) {
  size_t n = (size_t)capacity;
  c->capacity = capacity;
  c->key = memory;
  c->born = (double *)(c->key + n);
  c->last_use = c->born + n;
  c->slot = (int32_t *)(c->last_use + n);
  c->index = c->slot + n;
  c->score = (float *)(c->index + n);
  c->keep = c->score + n;
  c->out = (int32_t *)(c->keep + n);
  c->chosen = (uint8_t *)(c->out + n);
}

static void free_columns(tide_policy *p) {
  if (!p->memory) return;
  mem_release(p->ctx, p->columns_line, (int64_t)p->columns.capacity * COLUMN_BYTES);
  free(p->memory);
}

static tide_status grow(tide_policy *p, int32_t n) {
  if (n <= p->columns.capacity) return TIDE_OK;
  int64_t capacity = PRACTICE_N;
  while (capacity < n) capacity *= 2;
  if (capacity > INT32_MAX) capacity = INT32_MAX;
  int64_t bytes = capacity * COLUMN_BYTES;
  char label[96];
  int32_t line;
  snprintf(label, sizeof label, "policy '%s'", p->name);
  TRY(mem_reserve(p->ctx, TIDE_DEVICE_HOST, bytes, label, "candidates", &line));
  void *memory = malloc((size_t)bytes);
  if (!memory) {
    mem_release(p->ctx, line, bytes);
    return tide_fail(p->ctx, TIDE_EMEM, "%s: out of memory for %d candidates", label, n);
  }
  free_columns(p);
  p->memory = memory;
  p->columns_line = line;
  lay_out(&p->columns, memory, (int32_t)capacity);
  return TIDE_OK;
}

static int32_t first_nan(const double *values, int32_t n) {
  for (int32_t i = 0; values && i < n; i++)
    if (values[i] != values[i]) return i;
  return -1;
}

static tide_status check_candidates(tide_ctx *ctx, const tide_candidates *in) {
  for (int32_t i = 1; in->slot && i < in->n; i++)
    if (in->slot[i] <= in->slot[i - 1])
      return tide_fail(ctx, TIDE_EINVAL, "candidates: slots must ascend (got %d after %d at index %d)", in->slot[i],
                       in->slot[i - 1], i);
  int32_t born = first_nan(in->born, in->n), last_use = first_nan(in->last_use, in->n);
  if (born >= 0) return tide_fail(ctx, TIDE_EINVAL, "candidates: born is not a number at index %d", born);
  if (last_use >= 0) return tide_fail(ctx, TIDE_EINVAL, "candidates: last_use is not a number at index %d", last_use);
  return TIDE_OK;
}

static void take_candidates(policy_columns *c, const tide_candidates *in) {
  const int32_t n = in->n;
  const size_t count = (size_t)n;
  int32_t *const slot = c->slot;
  c->n = n;
  if (in->slot) memcpy(slot, in->slot, count * sizeof *slot);
  else for (int32_t i = 0; i < n; i++) slot[i] = i;
  if (in->key) memcpy(c->key, in->key, count * sizeof *c->key);
  else for (int32_t i = 0; i < n; i++) c->key[i] = (uint64_t)(int64_t)slot[i];
  memcpy(c->index, in->index ? in->index : slot, count * sizeof *c->index);
  if (in->born) memcpy(c->born, in->born, count * sizeof *c->born);
  else memset(c->born, 0, count * sizeof *c->born);
  memcpy(c->last_use, in->last_use ? in->last_use : c->born, count * sizeof *c->last_use);
  /* A NaN is made the one NaN: in a script its other patterns would be values of other types. */
  for (int32_t i = 0; i < n; i++) c->score[i] = !in->score ? -INFINITY : in->score[i] == in->score[i] ? in->score[i] : NAN;
  memset(c->keep, 0, count * sizeof *c->keep);
  memset(c->chosen, 0, count);
}

/* A prompt of made-up blocks: few of them sinks, some never scored, ages of every size. */
static void make_up_candidates(policy_columns *c) {
  take_candidates(c, &(tide_candidates){.n = PRACTICE_N});
  for (int32_t i = 0; i < PRACTICE_N; i++) {
    c->index[i] = i % 1024;
    c->born[i] = i / 4;
    c->last_use[i] = c->born[i] + i * 37 % 1024;
    if (i % 8) c->score[i] = (float)(i * 61 % 256) / 256;
  }
  c->now = 2 * PRACTICE_N;
  c->n_wanted = PRACTICE_N / 4;
}

/* ---- ranking ---------------------------------------------------------------------------------------------------- */

#define INLINED inline __attribute__((always_inline))

typedef bool leaves_first(const policy_columns *c, int32_t a, int32_t b);

static INLINED bool by_keep(const policy_columns *c, int32_t a, int32_t b) {
  if (c->keep[a] != c->keep[b]) return c->keep[a] < c->keep[b];
  if (c->last_use[a] != c->last_use[b]) return c->last_use[a] < c->last_use[b];
  return a < b;
}

static INLINED bool by_tail(const policy_columns *c, int32_t a, int32_t b) {
  if (c->last_use[a] != c->last_use[b]) return c->last_use[a] < c->last_use[b];
  if (c->index[a] != c->index[b]) return c->index[a] > c->index[b];
  return a < b;
}

/* Restores the heap below at: its root is the candidate that leaves last. */
static INLINED void sift_down(const policy_columns *c, int32_t *heap, int32_t n, int32_t at, leaves_first *first) {
  int32_t moved = heap[at];
  for (int32_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && first(c, heap[child], heap[child + 1])) child++;
    if (!first(c, moved, heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

/* The k first of the candidates that are not chosen yet, in order; there are at least k. Inlined with each order,
 * so that the comparison is no call: most candidates cost one look at the root. */
static INLINED void rank(const policy_columns *columns, int32_t k, int32_t *out, leaves_first *first) {
  const policy_columns copy = *columns, *const c = &copy;      /* no store to out can change it */
  int32_t held = 0, i = 0;
  for (; held < k; i++)
    if (!c->chosen[i]) out[held++] = i;
  for (int32_t at = k / 2 - 1; at >= 0; at--) sift_down(c, out, k, at, first);
  for (; k > 0 && i < c->n; i++) {
    if (c->chosen[i] || !first(c, i, out[0])) continue;
    out[0] = i;
    sift_down(c, out, k, 0, first);
  }
  for (int32_t end = k - 1; end > 0; end--) {
    int32_t last = out[0];
    out[0] = out[end];
    out[end] = last;
    sift_down(c, out, end, 0, first);
  }
}

static void rank_by_keep(const policy_columns *c, int32_t k, int32_t *out) { rank(c, k, out, by_keep); }
static void rank_by_tail(const policy_columns *c, int32_t k, int32_t *out) { rank(c, k, out, by_tail); }

/* The candidate that sits in a slot, -1 when none does. */
static int32_t find_slot(const policy_columns *c, int32_t slot) {
  int32_t low = 0, high = c->n;
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (c->slot[middle] < slot) low = middle + 1;
    else high = middle;
  }
  return low < c->n && c->slot[low] == slot ? low : -1;
}

/* Takes the proposals that are candidates, each once. Returns how many. */
static int32_t accept_proposals(policy_columns *c, int32_t *out) {
  int32_t n = 0;
  for (int32_t j = 0; j < c->n_proposed && j < c->n_wanted; j++) {
    int32_t i = find_slot(c, c->out[j]);
    if (i < 0 || c->chosen[i]) continue;
    c->chosen[i] = 1;
    out[n++] = i;
  }
  return n;
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static double time_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void strike(tide_policy *p) {
  p->n_strikes++;
  if (++p->n_in_row < STRIKES_IN_ROW) return;
  char last[sizeof p->fault - 64];
  snprintf(last, sizeof last, "%.*s", (int)sizeof last - 1, p->fault);
  snprintf(p->fault, sizeof p->fault, "switched off after %d faults in a row, the last: %s", STRIKES_IN_ROW, last);
  p->off = true;
}

static bool keep_is_sound(tide_policy *p) {
  const policy_columns *c = &p->columns;
  for (int32_t i = 0; c->n_proposed < 0 && i < c->n; i++) {
    if (c->keep[i] == c->keep[i]) continue;
    snprintf(p->fault, sizeof p->fault, "keep[%d] is not a number (slot %d, key %llu, index %d, born %.17g, "
             "last_use %.17g, score %g, now %.17g)", i, c->slot[i], (unsigned long long)c->key[i], c->index[i],
             c->born[i], c->last_use[i], c->score[i], c->now);
    return false;
  }
  return true;
}

/* Asks the script. False: it has no answer, and the reason is kept. */
static bool ask(tide_policy *p, double *policy_us) {
  double start = time_us();
  bool good = p->host->decide(p->script, p->budget_us, p->fault, sizeof p->fault);
  *policy_us = time_us() - start;
  good = good && keep_is_sound(p);
  bool late = good && *policy_us > p->budget_us;
  if (late)
    snprintf(p->fault, sizeof p->fault, "late: the decision took %.2f ms (budget is %.2f ms)", *policy_us / 1e3,
             p->budget_us / 1e3);
  if (good && !late) p->n_in_row = 0;
  else strike(p);
  return good;
}

/* ---- decisions -------------------------------------------------------------------------------------------------- */

static tide_status check_request(tide_policy *p, const tide_candidates *in, double now, int32_t n_wanted,
                                 const int32_t *victims) {
  if (p->ctx->closed) return tide_fail(p->ctx, TIDE_ESTATE, "policy '%s': its context was closed", p->name);
  if (!in || in->n < 0)
    return tide_fail(p->ctx, TIDE_EINVAL, "policy '%s': candidates are required, n 0 or more", p->name);
  if (n_wanted < 0 || n_wanted > in->n)
    return tide_fail(p->ctx, TIDE_ERANGE, "policy '%s': n_wanted out of range (got %d, want 0..%d, the candidates)",
                     p->name, n_wanted, in->n);
  if (n_wanted > 0 && !victims)
    return tide_fail(p->ctx, TIDE_EINVAL, "policy '%s': victims is required (got NULL)", p->name);
  if (now != now) return tide_fail(p->ctx, TIDE_EINVAL, "policy '%s': now is not a number", p->name);
  TRY(check_candidates(p->ctx, in));
  return grow(p, in->n);
}

static void decide(tide_policy *p, int32_t *victims, tide_decision *report) {
  policy_columns *c = &p->columns;
  bool answered = !p->off && c->n_wanted > 0 && ask(p, &report->policy_us);
  p->kept = answered && c->n_proposed < 0;
  if (p->kept) {
    rank_by_keep(c, c->n_wanted, victims);
  } else {
    int32_t n = answered ? accept_proposals(c, victims) : 0;
    report->n_rejected = answered ? c->n_proposed - n : 0;
    report->used_fallback = n < c->n_wanted;
    rank_by_tail(c, c->n_wanted - n, victims + n);
    if (answered && (n < c->n_wanted || report->n_rejected))
      snprintf(p->fault, sizeof p->fault, "proposed %d victims, of which %d were taken (want %d, each a candidate's "
               "slot once)", c->n_proposed, n, c->n_wanted);
  }
  for (int32_t j = 0; j < c->n_wanted; j++) victims[j] = c->slot[victims[j]];
  report->n_victims = c->n_wanted;
  report->n_strikes = p->n_strikes;
}

tide_status tide_policy_victims(tide_policy *p, const tide_candidates *candidates, double now, int32_t n_wanted,
                                int32_t *victims, tide_decision *report) {
  if (!p) return TIDE_EINVAL;
  if (p->running) return tide_fail(p->ctx, TIDE_EREENTRY, "policy '%s': asked from within its own decision", p->name);
  p->running = true;
  tide_decision decision = {0};
  tide_status status = check_request(p, candidates, now, n_wanted, victims);
  if (!status) {
    take_candidates(&p->columns, candidates);
    p->columns.now = now;
    p->columns.n_wanted = n_wanted;
    decide(p, victims, &decision);
    if (report) *report = decision;
  }
  p->running = false;
  return status;
}

/* ---- loading ---------------------------------------------------------------------------------------------------- */

static tide_status reserve_script(tide_policy *p) {
  char label[96];
  snprintf(label, sizeof label, "policy '%s'", p->name);
  return mem_reserve(p->ctx, TIDE_DEVICE_HOST, SCRIPT_MEMORY_BYTES, label, "policies", &p->script_line);
}

static tide_status open_script(tide_policy *p, const policy_source *source) {
  TRY(reserve_script(p));
  TRY(grow(p, PRACTICE_N));
  make_up_candidates(&p->columns);
  char error[1024] = "";
  tide_status status = p->host->open(source, &p->columns, &p->script, error, sizeof error);
  return status ? tide_fail(p->ctx, status, "policy '%s': %s", p->name, error) : TIDE_OK;
}

static tide_status load(tide_ctx *ctx, const policy_source *source, double budget_us, tide_policy **out) {
  if (!&tide_lua_policy_host)
    return tide_fail(ctx, TIDE_EUNSUPPORTED, "policy '%s': no Lua in this process; link libtide_lua to load policies",
                     source->name);
  if (source->bytes > MAX_SOURCE_BYTES)
    return tide_fail(ctx, TIDE_EFORMAT, "policy '%s': no script of reasonable size (got %lld bytes, want %d at most)",
                     source->name, (long long)source->bytes, MAX_SOURCE_BYTES);
  tide_policy *p = calloc(1, sizeof *p);
  if (!p) return tide_fail(ctx, TIDE_EMEM, "policy '%s': out of memory", source->name);
  ctx_retain(ctx);
  p->ctx = ctx;
  p->name = strdup(source->name);
  p->host = &tide_lua_policy_host;
  p->script_line = -1;
  p->budget_us = budget_us > 0 ? budget_us : default_budget_us;
  tide_status status = p->name ? open_script(p, source) : tide_fail(ctx, TIDE_EMEM, "policy: out of memory");
  if (status) {
    tide_policy_close(p);
    return status;
  }
  *out = p;
  return TIDE_OK;
}

/* The text of a file, ended by a zero byte; the caller frees it. */
static tide_status read_source(tide_ctx *ctx, const char *path, char **out, int64_t *bytes) {
  FILE *file = fopen(path, "rb");
  char *text = file ? malloc(MAX_SOURCE_BYTES + 1) : NULL;
  size_t n = text ? fread(text, 1, MAX_SOURCE_BYTES + 1, file) : 0;
  int error = !file || ferror(file) ? errno : 0;
  if (file) fclose(file);
  if (!error && text && n <= MAX_SOURCE_BYTES) {
    *out = text;
    *bytes = (int64_t)n;
    return TIDE_OK;
  }
  bool read = text;
  free(text);
  if (error) return tide_fail(ctx, TIDE_EFILE, "policy: cannot read '%s': %s", path, strerror(error));
  if (!read) return tide_fail(ctx, TIDE_EMEM, "policy: out of memory for '%s'", path);
  return tide_fail(ctx, TIDE_EFORMAT, "policy: '%s' is no script of reasonable size (want %d bytes at most)", path,
                   MAX_SOURCE_BYTES);
}

static tide_status load_file(tide_ctx *ctx, const tide_policy_settings *s, policy_source *source, tide_policy **out) {
  char *text = NULL, name[48];
  const char *base = strrchr(s->path, '/') ? strrchr(s->path, '/') + 1 : s->path;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(base, "."), base);
  TRY(read_source(ctx, s->path, &text, &source->bytes));
  source->text = text;
  source->chunk = s->path;
  source->name = s->name ? s->name : *name ? name : s->path;
  tide_status status = source->bytes > 0 ? load(ctx, source, s->budget_us, out)
                       : tide_fail(ctx, TIDE_EFORMAT, "policy: '%s' is empty (want a script that returns "
                                   "tide.policy.scorer{...})", s->path);
  free(text);
  return status;
}

tide_status tide_policy_open(tide_ctx *ctx, const tide_policy_settings *s, tide_policy **out) {
  if (!ctx) return TIDE_EINVAL;
  if (ctx->closed) return tide_fail(ctx, TIDE_ESTATE, "policy: the context was closed");
  if (!s || !out) return tide_fail(ctx, TIDE_EINVAL, "policy: settings and out are required");
  if (!s->path == !s->source) return tide_fail(ctx, TIDE_EINVAL, "policy: want a path or a source, one of the two");
  if (!(s->budget_us >= 0)) return tide_fail(ctx, TIDE_ERANGE, "policy: budget_us must be 0 or more");
  if (s->level < TIDE_POLICY_TRUSTED || s->level > TIDE_POLICY_GUARDED)
    return tide_fail(ctx, TIDE_ERANGE, "policy: level out of range (got %d, want 0 trusted or 1 guarded)", s->level);
  policy_source source = {.memory_bytes = SCRIPT_MEMORY_BYTES, .guarded = s->level == TIDE_POLICY_GUARDED};
  if (s->path) return load_file(ctx, s, &source, out);
  source.name = source.chunk = s->name && *s->name ? s->name : "policy";
  source.text = s->source;
  source.bytes = s->source_bytes;
  if (source.bytes <= 0)
    return tide_fail(ctx, TIDE_EFORMAT, "policy '%s': empty (want a script that returns tide.policy.scorer{...})",
                     source.name);
  return load(ctx, &source, s->budget_us, out);
}

tide_status tide_policy_load(tide_ctx *ctx, const char *name, const char *source, int64_t source_bytes,
                             tide_policy **out) {
  return tide_policy_open(ctx, &(tide_policy_settings){.name = name, .source = source, .source_bytes = source_bytes},
                          out);
}

tide_status tide_policy_load_file(tide_ctx *ctx, const char *path, tide_policy **out) {
  return tide_policy_open(ctx, &(tide_policy_settings){.path = path}, out);
}

void tide_policy_close(tide_policy *p) {
  if (!p || p->running) return;
  if (p->script) p->host->close(p->script);
  if (p->script_line >= 0) mem_release(p->ctx, p->script_line, SCRIPT_MEMORY_BYTES);
  free_columns(p);
  ctx_release(p->ctx);
  free(p->name);
  free(p);
}

/* ---- looking and setting ---------------------------------------------------------------------------------------- */

const float *tide_policy_keep(tide_policy *p, int32_t *n) {
  bool kept = p && p->kept;
  if (n) *n = kept ? p->columns.n : 0;
  return kept ? p->columns.keep : NULL;
}

const char *tide_policy_name(tide_policy *p) {
  if (!p) return "";
  const char *own = p->host->name(p->script);
  return own ? own : p->name;
}

const char *tide_policy_fault(tide_policy *p) { return p ? p->fault : ""; }
const char *tide_policy_describe(tide_policy *p) { return p ? p->host->describe(p->script) : ""; }

static tide_status setting(tide_policy *p, const char *name, const double *value, double *out) {
  if (p->ctx->closed) return tide_fail(p->ctx, TIDE_ESTATE, "policy '%s': its context was closed", p->name);
  if (p->running) return tide_fail(p->ctx, TIDE_EREENTRY, "policy '%s': set from within its own decision", p->name);
  if (!name) return tide_fail(p->ctx, TIDE_EINVAL, "policy '%s': the name of a setting is required", p->name);
  if (value && *value != *value)
    return tide_fail(p->ctx, TIDE_EINVAL, "policy '%s': setting '%s' is not a number", p->name, name);
  char error[256] = "";
  tide_status status = p->host->setting(p->script, name, value, out, error, sizeof error);
  return status ? tide_fail(p->ctx, status, "policy '%s': %s", p->name, error) : TIDE_OK;
}

tide_status tide_policy_set(tide_policy *p, const char *name, double value) {
  double now;
  return p ? setting(p, name, &value, &now) : TIDE_EINVAL;
}

tide_status tide_policy_get(tide_policy *p, const char *name, double *value) {
  if (!p) return TIDE_EINVAL;
  if (!value) return tide_fail(p->ctx, TIDE_EINVAL, "policy '%s': value is NULL", p->name);
  return setting(p, name, NULL, value);
}

tide_status tide_policy_budget(tide_policy *p, double budget_us) {
  if (!p) return TIDE_EINVAL;
  if (!(budget_us >= 0)) return tide_fail(p->ctx, TIDE_ERANGE, "policy '%s': budget_us must be 0 or more", p->name);
  p->budget_us = budget_us > 0 ? budget_us : default_budget_us;
  return TIDE_OK;
}
