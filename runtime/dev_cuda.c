/* dev_cuda.c: NVIDIA devices through the driver, which is opened when a device is asked for.
 *
 * Every call runs in the device's primary context, pushed for the call and popped after it, so the caller's current context
 * stays what it was. All code is loaded when a device is opened: a launch allocates and loads nothing, and may be captured.
 * Copies with pageable host memory are cuMemcpyAsync's: a source may be reused on return, a destination is complete on
 * return; captured into a graph, both must live as long as the graph.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "ctx.h"
#include "cuda_api.h"
#include "fatbin.h"

enum { OLDEST_DRIVER = 12040, OLDEST_LEVEL = 80 };

typedef struct entry {
  const char *name;
  cu_function function;
} entry;

typedef struct cuda {
  cuda_api api;
  cu_device device;
  cu_context context;
  cu_stream stream;                       /* what NULL means */
  cu_event handoff;                       /* orders copies between own streams of two devices */
  int n_modules, n_entries;
  cu_module *modules;
  entry *entries;                         /* sorted by name */
} cuda;

/* ---- finding the driver ---- */

static bool has_code(void) {
  for (int i = 0; i < tide_n_fatbins; i++)
    if (*tide_fatbins[i].size) return true;
  return false;
}

/* Why the driver cannot be used, in why; "" when it can. The library stays in the process. */
static void load_api(cuda_api *api, char *why, size_t why_bytes) {
  static const char *const names[] = {
#define CUDA_ENTRY(name, parameters) #name,
#include "cuda_api.def"
#undef CUDA_ENTRY
  };
  why[0] = 0;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    snprintf(why, why_bytes, "libcuda.so.1 not found (no NVIDIA driver)");
    return;
  }
  for (int i = 0; i < COUNT_OF(names) && !why[0]; i++) {
    void *address = dlsym(library, names[i]);
    memcpy((char *)api + i * sizeof address, &address, sizeof address);
    if (!address) snprintf(why, why_bytes, "driver too old (%s is missing, want CUDA %d.%d or newer)", names[i],
                           OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
  }
  dlclose(library);
}

static const char *error_text(const cuda_api *api, cu_result error) {
  const char *text = NULL;
  return api->cuGetErrorString(error, &text) || !text ? "unknown error" : text;
}

static const char *error_name(const cuda_api *api, cu_result error) {
  const char *name = NULL;
  return api->cuGetErrorName(error, &name) || !name ? "?" : name;
}

/* Starts the driver and counts its devices; 0 with a reason. */
static int start(cuda_api *api, char *why, size_t why_bytes) {
  int version = 0, count = 0;
  if (!has_code()) {
    snprintf(why, why_bytes, "built without CUDA kernels (no nvcc when built)");
    return 0;
  }
  load_api(api, why, why_bytes);
  if (why[0]) return 0;
  api->cuDriverGetVersion(&version);
  cu_result error = api->cuInit(0);
  if (!error) error = api->cuDeviceGetCount(&count);
  if (version < OLDEST_DRIVER)
    snprintf(why, why_bytes, "driver too old (got CUDA %d.%d, want %d.%d or newer)", version / 1000, version % 1000 / 10,
             OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
  else if (error == CUDA_NO_DEVICE || (!error && count == 0)) snprintf(why, why_bytes, "no device");
  else if (error) snprintf(why, why_bytes, "cuInit: %s (%s)", error_text(api, error), error_name(api, error));
  else return count;
  return 0;
}

static int attribute(const cuda_api *api, cu_device device, int which) {
  int value = 0;
  api->cuDeviceGetAttribute(&value, which, device);
  return value;
}

static int level_of(const cuda_api *api, cu_device device) {
  return 10 * attribute(api, device, CUDA_LEVEL_MAJOR) + attribute(api, device, CUDA_LEVEL_MINOR);
}

static void too_old(int level, char *why, size_t why_bytes) {
  snprintf(why, why_bytes, "device too old (got sm_%d, want sm_%d or newer)", level, OLDEST_LEVEL);
}

static void fill_info(const cuda_api *api, int32_t ordinal, cu_device device, tide_device_info *out) {
  size_t total = 0;
  snprintf(out->name, sizeof out->name, "cuda:%d", ordinal);
  api->cuDeviceGetName(out->model, sizeof out->model, device);
  api->cuDeviceTotalMem_v2(&total, device);
  out->n_processors = attribute(api, device, CUDA_N_PROCESSORS);
  out->capability = level_of(api, device);
  out->total_bytes = (int64_t)total;
}

/* free_bytes stays 0: only an open device can say. */
static tide_status cuda_probe(int32_t ordinal, tide_device_info *out) {
  cuda_api api;
  cu_device device;
  int count = start(&api, out->why_absent, sizeof out->why_absent);
  if (ordinal >= (count ? count : 1)) return TIDE_ERANGE;
  snprintf(out->name, sizeof out->name, "cuda");
  if (!count) return TIDE_OK;
  cu_result error = api.cuDeviceGet(&device, ordinal);
  if (error) snprintf(out->why_absent, sizeof out->why_absent, "cuDeviceGet: %s", error_text(&api, error));
  else fill_info(&api, ordinal, device, out);
  if (!error && out->capability < OLDEST_LEVEL) too_old(out->capability, out->why_absent, sizeof out->why_absent);
  return TIDE_OK;
}

/* ---- calls ---- */

static tide_status report(dev *d, const char *call, cu_result error) {
  const cuda_api *api = &((cuda *)d->impl)->api;
  if (!error) return TIDE_OK;
  return tide_fail(d->ctx, TIDE_EDEVICE, "cuda: %s: %s (%s)", call, error_text(api, error), error_name(api, error));
}

static tide_status enter(dev *d) {
  cuda *c = d->impl;
  return report(d, "cuCtxPushCurrent", c->api.cuCtxPushCurrent_v2(c->context));
}

static void leave(dev *d) {
  cu_context popped;
  ((cuda *)d->impl)->api.cuCtxPopCurrent_v2(&popped);
}

static tide_status leave_with(dev *d, const char *call, cu_result error) {
  leave(d);
  return report(d, call, error);
}

/* One driver call in the device's context; c is its cuda. */
#define DRIVER(entry, ...) (enter(d) ? TIDE_EDEVICE : leave_with(d, #entry, c->api.entry(__VA_ARGS__)))

/* As enter, and a capture in progress does not mind what follows: buffers come and go in it, a collector frees them. */
static tide_status enter_aside(dev *d, cu_capture_mode *mode) {
  *mode = CUDA_CAPTURE_RELAXED;
  TRY(enter(d));
  ((cuda *)d->impl)->api.cuThreadExchangeStreamCaptureMode(mode);
  return TIDE_OK;
}

static void leave_aside(dev *d, cu_capture_mode *mode) {
  ((cuda *)d->impl)->api.cuThreadExchangeStreamCaptureMode(mode);
  leave(d);
}

static cu_stream stream_of(const cuda *c, void *stream) { return stream ? stream : c->stream; }

static cu_pointer pointer(const void *data) { return (cu_pointer)(uintptr_t)data; }

/* ---- opening ---- */

static int by_name(const void *a, const void *b) { return strcmp(((const entry *)a)->name, ((const entry *)b)->name); }

/* Loads a function and lets it use all the shared memory that its static part leaves, and clusters of 16. Code of an
 * older architecture, compiled anew for this one, lowers the level: it neither waits for its predecessor nor knows clusters. */
static cu_result prepare(dev *d, cu_function function, entry *out) {
  cuda *c = d->impl;
  int static_bytes = 0, ptx = 0;
  out->function = function;
  cu_result error = c->api.cuFuncLoad(function);
  if (!error) error = c->api.cuFuncGetName(&out->name, function);
  if (!error) error = c->api.cuFuncGetAttribute(&static_bytes, CUDA_STATIC_SMEM, function);
  if (!error) error = c->api.cuFuncGetAttribute(&ptx, CUDA_PTX_VERSION, function);
  if (!error) error = c->api.cuFuncSetAttribute(function, CUDA_MAX_DYNAMIC_SMEM, d->caps.smem_bytes - static_bytes);
  if (ptx > 0 && ptx < d->caps.level) d->caps.level = ptx;
  if (!error && d->caps.level == 90) error = c->api.cuFuncSetAttribute(function, CUDA_LARGE_CLUSTER, 1);
  return error;
}

static tide_status add_functions(dev *d, cu_module module, const char *name) {
  cuda *c = d->impl;
  unsigned n = 0;
  cu_result error = c->api.cuModuleGetFunctionCount(&n, module);
  cu_function *functions = calloc(n + 1, sizeof *functions);
  entry *entries = realloc(c->entries, ((size_t)c->n_entries + n + 1) * sizeof *entries);
  if (entries) c->entries = entries;
  if (!functions || !entries) {
    free(functions);
    return tide_fail(d->ctx, TIDE_EMEM, "cuda: out of memory for the functions of %s", name);
  }
  if (!error && n) error = c->api.cuModuleEnumerateFunctions(functions, n, module);
  for (unsigned i = 0; i < n && !error; i++) error = prepare(d, functions[i], &entries[c->n_entries++]);
  free(functions);
  return report(d, name, error);
}

/* Every file of kernels, but those that hold nothing for this device: their variants refuse it too. */
static tide_status load_modules(dev *d) {
  cuda *c = d->impl;
  c->modules = calloc((size_t)tide_n_fatbins + 1, sizeof *c->modules);
  if (!c->modules) return tide_fail(d->ctx, TIDE_EMEM, "cuda: out of memory");
  for (int i = 0; i < tide_n_fatbins; i++) {
    if (!*tide_fatbins[i].size) continue;
    cu_result error = c->api.cuModuleLoadData(&c->modules[c->n_modules], tide_fatbins[i].data);
    if (error == CUDA_NO_BINARY) continue;
    TRY(report(d, tide_fatbins[i].name, error));
    TRY(add_functions(d, c->modules[c->n_modules++], tide_fatbins[i].name));
  }
  if (c->n_entries) qsort(c->entries, (size_t)c->n_entries, sizeof *c->entries, by_name);
  return TIDE_OK;
}

/* Direct copies between this device and the context's others, where the machine has a way. */
static tide_status meet_peers(dev *d) {
  cuda *c = d->impl;
  for (int32_t id = 1; id <= d->ctx->n_devices; id++) {
    if (d->ctx->devices[id]->ops != &dev_cuda) continue;
    cuda *other = d->ctx->devices[id]->impl;
    int there = 0, back = 0;
    cu_context popped;
    c->api.cuDeviceCanAccessPeer(&there, c->device, other->device);
    c->api.cuDeviceCanAccessPeer(&back, other->device, c->device);
    if (!there || !back) continue;
    cu_result error = c->api.cuCtxEnablePeerAccess(other->context, 0);
    if (error && error != CUDA_PEER_ENABLED) return report(d, "cuCtxEnablePeerAccess", error);
    TRY(report(d, "cuCtxPushCurrent", c->api.cuCtxPushCurrent_v2(other->context)));
    error = c->api.cuCtxEnablePeerAccess(c->context, 0);
    c->api.cuCtxPopCurrent_v2(&popped);
    if (error && error != CUDA_PEER_ENABLED) return report(d, "cuCtxEnablePeerAccess", error);
  }
  return TIDE_OK;
}

static tide_status furnish(dev *d) {
  cuda *c = d->impl;
  TRY(report(d, "cuStreamCreate", c->api.cuStreamCreate(&c->stream, CUDA_STREAM_NON_BLOCKING)));
  TRY(report(d, "cuEventCreate", c->api.cuEventCreate(&c->handoff, CUDA_EVENT_NO_TIMING)));
  TRY(load_modules(d));
  return meet_peers(d);
}

static void cuda_close(dev *d) {
  cuda *c = d->impl;
  if (!enter(d)) {
    for (int i = 0; i < c->n_modules; i++) c->api.cuModuleUnload(c->modules[i]);
    if (c->handoff) c->api.cuEventDestroy_v2(c->handoff);
    if (c->stream) c->api.cuStreamDestroy_v2(c->stream);
    leave(d);
  }
  c->api.cuDevicePrimaryCtxRelease_v2(c->device);
  free(c->modules);
  free(c->entries);
  free(c);
  d->impl = NULL;
}

/* The device behind the ordinal, with its primary context. */
static tide_status attach(dev *d) {
  cuda *c = d->impl;
  char why[192] = "";
  int count = start(&c->api, why, sizeof why);
  if (!count) return tide_fail(d->ctx, TIDE_EDEVICE, "cuda: %s", why);
  if (d->ordinal >= count)
    return tide_fail(d->ctx, TIDE_EDEVICE, "cuda: no such device (got cuda:%d, want cuda:0..%d)", d->ordinal, count - 1);
  TRY(report(d, "cuDeviceGet", c->api.cuDeviceGet(&c->device, d->ordinal)));
  d->caps = (kernel_caps){.backend = KERNEL_CUDA, .level = level_of(&c->api, c->device),
                          .n_processors = attribute(&c->api, c->device, CUDA_N_PROCESSORS),
                          .smem_bytes = attribute(&c->api, c->device, CUDA_SMEM_BYTES)};
  if (d->caps.level < OLDEST_LEVEL) {
    too_old(d->caps.level, why, sizeof why);
    return tide_fail(d->ctx, TIDE_EDEVICE, "cuda:%d: %s", d->ordinal, why);
  }
  return report(d, "cuDevicePrimaryCtxRetain", c->api.cuDevicePrimaryCtxRetain(&c->context, c->device));
}

static tide_status cuda_open(dev *d) {
  d->impl = calloc(1, sizeof(cuda));
  if (!d->impl) return tide_fail(d->ctx, TIDE_EMEM, "cuda: out of memory");
  tide_status status = attach(d);
  if (status) {
    free(d->impl);
    d->impl = NULL;
    return status;
  }
  status = enter(d);
  if (!status) {
    status = furnish(d);
    leave(d);
  }
  if (status) cuda_close(d);
  return status;
}

static tide_status cuda_describe(dev *d, tide_device_info *out) {
  cuda *c = d->impl;
  size_t free_bytes = 0, total_bytes = 0;
  cu_capture_mode mode;
  TRY(enter_aside(d, &mode));
  cu_result error = c->api.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  leave_aside(d, &mode);
  TRY(report(d, "cuMemGetInfo", error));
  fill_info(&c->api, d->ordinal, c->device, out);
  out->free_bytes = (int64_t)free_bytes;
  return TIDE_OK;
}

/* ---- memory ---- */

static tide_status cuda_alloc(dev *d, int64_t bytes, bool pinned, void **out) {
  cuda *c = d->impl;
  cu_pointer data = 0;
  void *host = NULL;
  cu_capture_mode mode;
  TRY(enter_aside(d, &mode));
  cu_result error = pinned ? c->api.cuMemHostAlloc(&host, (size_t)bytes, CUDA_HOST_PORTABLE)
                           : c->api.cuMemAlloc_v2(&data, (size_t)bytes);
  leave_aside(d, &mode);
  if (error == CUDA_OUT_OF_MEMORY)
    return tide_fail(d->ctx, TIDE_EMEM, "cuda: %s: out of memory for %lld bytes (%s)",
                     pinned ? "cuMemHostAlloc" : "cuMemAlloc", (long long)bytes, error_name(&c->api, error));
  TRY(report(d, pinned ? "cuMemHostAlloc" : "cuMemAlloc", error));
  *out = pinned ? host : (void *)(uintptr_t)data;
  return TIDE_OK;
}

static void cuda_free(dev *d, void *data, bool pinned) {
  cuda *c = d->impl;
  cu_capture_mode mode;
  if (enter_aside(d, &mode)) return;
  if (pinned) c->api.cuMemFreeHost(data);
  else c->api.cuMemFree_v2(pointer(data));
  leave_aside(d, &mode);
}

/* stream, of d, goes on once what leader's own stream holds now has run. */
static tide_status follow(dev *d, cu_stream stream, dev *leader) {
  cuda *c = d->impl, *l = leader->impl;
  TRY(enter(leader));
  cu_result error = l->api.cuEventRecord(l->handoff, l->stream);
  leave(leader);
  TRY(report(leader, "cuEventRecord", error));
  return DRIVER(cuStreamWaitEvent, stream, l->handoff, 0);
}

/* With stream NULL the copy is ordered with both devices' own streams, else with that stream of the source's device alone. */
static tide_status copy_to_peer(dev *d, dev *peer, void *dst, const void *src, int64_t bytes, void *stream) {
  cuda *c = d->impl, *p = peer->impl;
  if (peer->ops != &dev_cuda) return tide_fail(d->ctx, TIDE_EUNSUPPORTED, "copy: from cuda to %s", peer->ops->kind);
  if (!stream) TRY(follow(d, c->stream, peer));
  TRY(DRIVER(cuMemcpyPeerAsync, pointer(dst), p->context, pointer(src), c->context, (size_t)bytes, stream_of(c, stream)));
  return stream ? TIDE_OK : follow(peer, p->stream, d);
}

static tide_status cuda_copy(dev *d, copy_kind kind, void *dst, const void *src, int64_t bytes, dev *peer, void *stream) {
  cuda *c = d->impl;
  if (kind == COPY_TO_PEER) return copy_to_peer(d, peer, dst, src, bytes, stream);
  return DRIVER(cuMemcpyAsync, pointer(dst), pointer(src), (size_t)bytes, stream_of(c, stream));
}

/* ---- launches ---- */

static cu_result launch_one(const cuda *c, cu_function function, const kernel_launch *l, const void *args, cu_stream stream) {
  void *parameters[] = {(void *)(uintptr_t)args};
  cu_launch_attribute attributes[2];
  cu_launch_config config = {.smem_bytes = l->smem_bytes, .stream = stream, .attributes = attributes};
  memcpy(config.grid, l->grid, sizeof config.grid);
  memcpy(config.block, l->block, sizeof config.block);
  if (l->cluster)
    attributes[config.n_attributes++] = (cu_launch_attribute){.id = CUDA_CLUSTER, .value.cluster = {l->cluster, 1, 1}};
  if (l->overlaps)
    attributes[config.n_attributes++] = (cu_launch_attribute){.id = CUDA_PROGRAMMATIC, .value.programmatic = 1};
  return c->api.cuLaunchKernelEx(&config, function, parameters, NULL);
}

static tide_status cuda_launch(dev *d, const kernel *k, const kernel_variant *v, const void *args, void *stream) {
  cuda *c = d->impl;
  kernel_launch launches[KERNEL_MAX_LAUNCHES] = {0};
  int n = v->plan(args, &d->caps, launches);
  if (n == 0) return TIDE_OK;
  TRY(enter(d));
  cu_result error = 0;
  const char *missing = NULL;
  for (int i = 0; i < n && !error && !missing; i++) {
    entry key = {.name = launches[i].entry};
    const entry *e = c->n_entries ? bsearch(&key, c->entries, (size_t)c->n_entries, sizeof key, by_name) : NULL;
    launches[i].overlaps &= d->caps.level >= 90;
    if (e) error = launch_one(c, e->function, &launches[i], args, stream_of(c, stream));
    else missing = launches[i].entry;
  }
  leave(d);
  if (missing)
    return tide_fail(d->ctx, TIDE_EUNSUPPORTED, "%s: %s is not built for sm_%d", k->name, missing, d->caps.level);
  return error ? tide_fail(d->ctx, TIDE_EDEVICE, "cuda: %s (%s): cuLaunchKernelEx: %s (%s)", k->name, v->name,
                           error_text(&c->api, error), error_name(&c->api, error)) : TIDE_OK;
}

/* ---- streams, events, graphs ---- */

static tide_status cuda_sync(dev *d, void *stream, bool whole_device) {
  cuda *c = d->impl;
  return whole_device ? DRIVER(cuCtxSynchronize) : DRIVER(cuStreamSynchronize, stream_of(c, stream));
}

static tide_status cuda_stream_query(dev *d, void *stream) {
  cuda *c = d->impl;
  TRY(enter(d));
  cu_result error = c->api.cuStreamQuery(stream_of(c, stream));
  leave(d);
  return error == CUDA_NOT_READY ? TIDE_ESTATE : report(d, "cuStreamQuery", error);
}

static tide_status cuda_stream_new(dev *d, void **out) {
  cuda *c = d->impl;
  return DRIVER(cuStreamCreate, out, CUDA_STREAM_NON_BLOCKING);
}

static tide_status cuda_stream_free(dev *d, void *stream) {
  cuda *c = d->impl;
  return DRIVER(cuStreamDestroy_v2, stream);
}

static tide_status cuda_event_new(dev *d, void **out) {
  cuda *c = d->impl;
  return DRIVER(cuEventCreate, out, 0);
}

static void cuda_event_free(dev *d, void *event) {
  cuda *c = d->impl;
  if (enter(d)) return;
  c->api.cuEventDestroy_v2(event);
  leave(d);
}

static tide_status cuda_event_record(dev *d, void *event, void *stream) {
  cuda *c = d->impl;
  return DRIVER(cuEventRecord, event, stream_of(c, stream));
}

static tide_status cuda_stream_wait(dev *d, void *event, void *stream) {
  cuda *c = d->impl;
  return DRIVER(cuStreamWaitEvent, stream_of(c, stream), event, 0);
}

static tide_status cuda_event_elapsed(dev *d, void *first, void *last, double *us) {
  cuda *c = d->impl;
  float ms = 0;
  TRY(DRIVER(cuEventSynchronize, last));
  TRY(DRIVER(cuEventElapsedTime, &ms, first, last));
  *us = (double)ms * 1e3;
  return TIDE_OK;
}

static tide_status cuda_graph_begin(dev *d, void *stream) {
  cuda *c = d->impl;
  return DRIVER(cuStreamBeginCapture_v2, stream_of(c, stream), CUDA_CAPTURE_THREAD_LOCAL);
}

static tide_status cuda_graph_end(dev *d, void *stream, void **out) {
  cuda *c = d->impl;
  cu_graph graph = NULL;
  TRY(DRIVER(cuStreamEndCapture, stream_of(c, stream), &graph));
  tide_status status = DRIVER(cuGraphInstantiateWithFlags, out, graph, 0);
  c->api.cuGraphDestroy(graph);
  return status;
}

static tide_status cuda_graph_replay(dev *d, void *graph, void *stream) {
  cuda *c = d->impl;
  return DRIVER(cuGraphLaunch, graph, stream_of(c, stream));
}

static void cuda_graph_free(dev *d, void *graph) {
  cuda *c = d->impl;
  if (enter(d)) return;
  c->api.cuGraphExecDestroy(graph);
  leave(d);
}

const dev_ops dev_cuda = {
    .kind = "cuda", .probe = cuda_probe, .open = cuda_open, .close = cuda_close, .describe = cuda_describe,
    .alloc = cuda_alloc, .free = cuda_free, .copy = cuda_copy, .launch = cuda_launch,
    .sync = cuda_sync, .stream_query = cuda_stream_query, .stream_new = cuda_stream_new, .stream_free = cuda_stream_free,
    .event_new = cuda_event_new, .event_free = cuda_event_free, .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait, .event_elapsed = cuda_event_elapsed,
    .graph_begin = cuda_graph_begin, .graph_end = cuda_graph_end, .graph_replay = cuda_graph_replay, .graph_free = cuda_graph_free,
};
