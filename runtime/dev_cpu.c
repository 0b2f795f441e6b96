/* dev_cpu.c: the host as a device. Kernels run to their end in the call, their items spread over all cores. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "ctx.h"
#include "pool.h"

static int best_level(void) {
#if defined(__x86_64__) && !defined(KERNEL_NO_SIMD)
  __builtin_cpu_init();
  bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq");
  return v3 && v4 ? CPU_V4 : v3 ? CPU_V3 : CPU_PLAIN;
#else
  return CPU_PLAIN;
#endif
}

/* A line of a /proc text file that starts with key; value is what follows the colon. */
static bool proc_value(const char *path, const char *key, char *value, size_t value_bytes) {
  char line[256];
  bool found = false;
  FILE *f = fopen(path, "r");
  if (!f) return false;
  while (!found && fgets(line, sizeof line, f)) {
    const char *colon = strchr(line, ':');
    found = colon && !strncmp(line, key, strlen(key));
    if (found) snprintf(value, value_bytes, "%s", colon + 1 + strspn(colon + 1, " \t"));
  }
  fclose(f);
  if (found) value[strcspn(value, "\n")] = 0;
  return found;
}

static void fill_info(tide_device_info *out) {
  char value[128] = "0";
  snprintf(out->name, sizeof out->name, "cpu");
  if (!proc_value("/proc/cpuinfo", "model name", out->model, sizeof out->model)) snprintf(out->model, sizeof out->model, "cpu");
  out->n_processors = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
  out->capability = best_level();
  out->total_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  bool known = proc_value("/proc/meminfo", "MemAvailable", value, sizeof value);
  out->free_bytes = known ? strtoll(value, NULL, 10) * 1024 : out->total_bytes;
}

static tide_status cpu_probe(int32_t ordinal, tide_device_info *out) {
  if (ordinal != 0) return TIDE_ERANGE;
  fill_info(out);
  return TIDE_OK;
}

/* Those that this process may use. */
static int n_cores(void) {
  cpu_set_t set;
  int n = sched_getaffinity(0, sizeof set, &set) ? 0 : CPU_COUNT(&set);
  return n > 0 ? n : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static tide_status cpu_open(dev *d) {
  int wanted = d->ctx->settings.cpu_level, best = best_level(), threads = d->ctx->settings.n_threads;
  if (wanted > best) return tide_fail(d->ctx, TIDE_EUNSUPPORTED, "cpu_level: this machine has less (got %d, want 0..%d)", wanted, best);
  d->caps = (kernel_caps){.backend = KERNEL_CPU, .level = wanted ? wanted : best,
                          .n_processors = threads ? threads : n_cores()};
  d->impl = pool_new(d->caps.n_processors);
  return d->impl ? TIDE_OK : tide_fail(d->ctx, TIDE_EMEM, "cpu: out of memory");
}

static void cpu_close(dev *d) { pool_free(d->impl); }

static tide_status cpu_describe(dev *d, tide_device_info *out) {
  fill_info(out);
  out->n_processors = d->caps.n_processors;
  out->capability = d->caps.level;
  return TIDE_OK;
}

static tide_status cpu_alloc(dev *d, int64_t bytes, bool pinned, void **out) {
  (void)pinned;
  void *data = NULL;
  if (posix_memalign(&data, 256, (size_t)bytes))
    return tide_fail(d->ctx, TIDE_EMEM, "cpu: the allocator refused %lld bytes", (long long)bytes);
  *out = data;
  return TIDE_OK;
}

static void cpu_free(dev *d, void *data, bool pinned) {
  (void)d, (void)pinned;
  free(data);
}

static tide_status cpu_copy(dev *d, copy_kind kind, void *dst, const void *src, int64_t bytes, dev *peer, void *stream) {
  (void)d, (void)kind, (void)peer, (void)stream;
  memmove(dst, src, (size_t)bytes);
  return TIDE_OK;
}

/* A phase of a kernel as a job: its items in n_pieces runs of about equal length. */
typedef struct phase_job {
  const kernel_variant *variant;
  const void *args;
  int phase;
  int64_t n_items, n_pieces;
} phase_job;

static void run_piece(void *arg, int64_t piece) {
  const phase_job *j = arg;
  j->variant->run(j->args, j->phase, j->n_items * piece / j->n_pieces, j->n_items * (piece + 1) / j->n_pieces);
}

static tide_status cpu_launch(dev *d, const kernel *k, const kernel_variant *v, const void *args, void *stream) {
  (void)stream;
  for (int phase = 0; phase < k->n_phases; phase++) {
    int64_t n = k->n_items(args, phase), n_threads = d->caps.n_processors;
    phase_job job = {v, args, phase, n, n < 8 * n_threads ? n : 8 * n_threads};
    if (n > 1 && n_threads > 1) pool_run(d->impl, run_piece, &job, job.n_pieces);
    else if (n > 0) v->run(args, phase, 0, n);
  }
  return TIDE_OK;
}

static tide_status cpu_sync(dev *d, void *stream, bool whole_device) {
  (void)d, (void)stream, (void)whole_device;
  return TIDE_OK;
}

static tide_status cpu_stream_query(dev *d, void *stream) {
  (void)d, (void)stream;
  return TIDE_OK;
}

static tide_status cpu_stream_new(dev *d, void **out) {
  (void)d;
  *out = NULL;
  return TIDE_OK;
}

static tide_status cpu_stream_free(dev *d, void *stream) {
  (void)stream;
  return tide_fail(d->ctx, TIDE_EINVAL, "stream: the cpu device has no streams of its own");
}

static tide_status cpu_event_new(dev *d, void **out) {
  struct timespec *t = calloc(1, sizeof *t);
  if (!t) return tide_fail(d->ctx, TIDE_EMEM, "event: out of memory");
  *out = t;
  return TIDE_OK;
}

static void cpu_event_free(dev *d, void *event) {
  (void)d;
  free(event);
}

static tide_status cpu_event_record(dev *d, void *event, void *stream) {
  (void)d, (void)stream;
  clock_gettime(CLOCK_MONOTONIC, event);
  return TIDE_OK;
}

static tide_status cpu_stream_wait(dev *d, void *event, void *stream) {
  (void)d, (void)event, (void)stream;
  return TIDE_OK;
}

static tide_status cpu_event_elapsed(dev *d, void *first, void *last, double *us) {
  (void)d;
  const struct timespec *a = first, *b = last;
  *us = (double)(b->tv_sec - a->tv_sec) * 1e6 + (double)(b->tv_nsec - a->tv_nsec) * 1e-3;
  return TIDE_OK;
}

static tide_status no_graph(dev *d) {
  return tide_fail(d->ctx, TIDE_EUNSUPPORTED, "graph: the %s device has none; use a cuda device", d->ops->kind);
}
static tide_status cpu_graph_begin(dev *d, void *stream) { return (void)stream, no_graph(d); }
static tide_status cpu_graph_end(dev *d, void *stream, void **out) { return (void)stream, (void)out, no_graph(d); }
static tide_status cpu_graph_replay(dev *d, void *graph, void *stream) { return (void)graph, (void)stream, no_graph(d); }
static void cpu_graph_free(dev *d, void *graph) { (void)d, (void)graph; }

const dev_ops dev_cpu = {
    .kind = "cpu", .probe = cpu_probe, .open = cpu_open, .close = cpu_close, .describe = cpu_describe,
    .alloc = cpu_alloc, .free = cpu_free, .copy = cpu_copy, .launch = cpu_launch,
    .sync = cpu_sync, .stream_query = cpu_stream_query, .stream_new = cpu_stream_new, .stream_free = cpu_stream_free,
    .event_new = cpu_event_new, .event_free = cpu_event_free, .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait, .event_elapsed = cpu_event_elapsed,
    .graph_begin = cpu_graph_begin, .graph_end = cpu_graph_end, .graph_replay = cpu_graph_replay, .graph_free = cpu_graph_free,
};
