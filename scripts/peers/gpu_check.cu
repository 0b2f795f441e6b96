/* gpu_check: the CUDA bodies of lowrank_project and score_blocks against their references, then their times.
 *
 *   scripts/peers/gpu_check.sh [check] [bench] [tune]      builds what it needs with nvcc and runs it
 *
 * check: one line a geometry that differs, then counts. bench: a table of median us over graph replays that
 * rotate through more than 250 MB, with the ratio to the floor of the same run. tune: the same for other
 * launch geometries.
 */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>
#include <cuda_runtime.h>
#include "lowrank_project.h"
#include "score_blocks.h"
extern "C" {
#include "kernel.h"
}

#define MUST(call)                                                                                                               \
  do {                                                                                                                           \
    cudaError_t error = (call);                                                                                                  \
    if (error) printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)), exit(1);                         \
  } while (0)

static std::string folder;
static cudaStream_t stream;
static kernel_caps caps;
static int n_bad, n_done;

/* ---- launching ---- */

static const void *find_entry(const kernel_launch &l) {
  static std::map<std::string, cudaLibrary_t> libraries;
  static std::map<std::string, const void *> entries;
  if (entries.count(l.entry)) return entries[l.entry];
  if (!libraries.count(l.fatbin))
    MUST(cudaLibraryLoadFromFile(&libraries[l.fatbin], (folder + "/" + l.fatbin + ".cubin").c_str(), NULL, NULL, 0, NULL, NULL,
                                 0));
  cudaKernel_t entry;
  MUST(cudaLibraryGetKernel(&entry, libraries[l.fatbin], l.entry));
  cudaFuncAttributes attributes;
  MUST(cudaFuncGetAttributes(&attributes, (const void *)entry));
  MUST(cudaFuncSetAttribute((const void *)entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            caps.smem_bytes - (int)attributes.sharedSizeBytes));
  return entries[l.entry] = (const void *)entry;
}

static void launch(const kernel_launch &l, const void *args, bool overlap) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(l.grid[0], l.grid[1], l.grid[2]);
  config.blockDim = dim3(l.block[0], l.block[1], l.block[2]);
  config.dynamicSmemBytes = l.smem_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap && l.overlaps;
  void *parameters[] = {(void *)args};
  MUST(cudaLaunchKernelExC(&config, find_entry(l), parameters));
}

static const kernel_variant *variant_of(const kernel &k, const char *name) {
  for (int i = 0; i < k.n_variants; i++)
    if (!strcmp(k.variants[i].name, name)) return &k.variants[i];
  printf("no variant %s of %s\n", name, k.name);
  exit(1);
}

static std::vector<kernel_launch> plan_of(const kernel &k, const char *name, const void *args) {
  kernel_launch launches[KERNEL_MAX_LAUNCHES] = {};
  int n = variant_of(k, name)->plan(args, &caps, launches);
  return std::vector<kernel_launch>(launches, launches + n);
}

static void run_reference(const kernel &k, const void *args) {
  for (int phase = 0; phase < k.n_phases; phase++) {
    int64_t n = k.n_items(args, phase), n_threads = std::min<int64_t>(n, std::thread::hardware_concurrency());
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < n_threads; t++)
      threads.emplace_back([&, t] { k.variants[0].run(args, phase, n * t / n_threads, n * (t + 1) / n_threads); });
    for (auto &t : threads) t.join();
  }
}

/* ---- data: a host array and its copy on the device ---- */

static std::mt19937_64 rng(20240817);

template <class T> struct array {
  std::vector<T> host;
  T *device = NULL;

  explicit array(size_t n) : host(n) { MUST(cudaMalloc(&device, std::max<size_t>(n, 1) * sizeof(T))); }
  ~array() { cudaFree(device); }
  array(const array &) = delete;
  void upload() { MUST(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice)); }
  std::vector<T> download() const {
    std::vector<T> out(host.size());
    MUST(cudaMemcpy(out.data(), device, out.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }
  void poison() { memset(host.data(), 0xcb, host.size() * sizeof(T)); }
};

static uint16_t to_bf16(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t x) {
  uint32_t u = (uint32_t)x << 16;
  float y;
  memcpy(&y, &u, 4);
  return y;
}

static void randomize(std::vector<uint16_t> &v, float scale, bool strange = false) {
  std::normal_distribution<float> normal(0, scale);
  for (auto &x : v) x = to_bf16(normal(rng));
  for (size_t i = 0; strange && i < v.size() / 200 + 1; i++)
    v[rng() % v.size()] = (uint16_t[]){0x7fc0, 0x7f80, 0xff80, 0}[rng() % 4];
}

static int32_t below(int64_t n) {
  return (int32_t)(rng() % (uint64_t)n);
}

static void report(const std::string &what, double worst, size_t n_wrong, size_t first, size_t n) {
  n_done++;
  if (n_wrong) n_bad++, printf("WRONG %s: %zu of %zu differ, first at %zu, worst %.3g\n", what.c_str(), n_wrong, n, first, worst);
}

/* got may differ from want by absolute + relative |want|; NaN equals NaN, infinities and poison equal
 * themselves. */
template <class T, class Value>
static void compare(const std::string &what, const std::vector<T> &got, const std::vector<T> &want, Value value, double absolute,
                    double relative) {
  double worst = 0;
  size_t n_wrong = 0, first = 0;
  for (size_t i = 0; i < want.size(); i++) {
    double g = value(got[i]), w = value(want[i]), d = fabs(g - w);
    bool good = !memcmp(&got[i], &want[i], sizeof(T)) || (g != g && w != w) || d <= absolute + relative * fabs(w);
    if (good && d == d && !std::isinf(d)) worst = std::max(worst, d);
    if (good) continue;
    if (!n_wrong++) first = i, printf("  %s: at %zu got %.9g, want %.9g\n", what.c_str(), i, g, w);
  }
  report(what, worst, n_wrong, first, want.size());
}

/* ---- checks ---- */

struct project_case {
  int n_blocks, block_size, n_heads, n_maps, head_dim, rank;
  bool lists, bias, strange;
  int dtype, pad;
};

static void check_project(const project_case &c, const char *variant) {
  int n_x = c.n_blocks + 3, n_y = c.n_blocks + 5;
  tide_lowrank_project_args a = {};
  a.x_dtype = c.dtype, a.n_blocks = c.n_blocks, a.block_size = c.block_size, a.n_heads = c.n_heads, a.n_maps = c.n_maps;
  a.head_dim = c.head_dim, a.rank = c.rank, a.n_x_blocks = n_x, a.n_y_blocks = n_y, a.first_y = 2;
  a.x_head_stride = c.head_dim + c.pad, a.x_token_stride = a.x_head_stride * c.n_heads,
  a.x_block_stride = a.x_token_stride * c.block_size;
  size_t width = c.dtype == DT_F32 ? 2 : 1;
  array<uint16_t> x(n_x * a.x_block_stride * width), p((size_t)c.n_maps * c.head_dim * c.rank),
      y((size_t)n_y * c.n_heads * c.block_size * c.rank);
  array<float> bias((size_t)c.n_maps * c.rank);
  array<int32_t> xs(c.n_blocks), ys(c.n_blocks);
  array<uint8_t> written(n_y);
  randomize(x.host, 1, c.strange && c.dtype == DT_BF16);
  if (c.dtype == DT_F32)
    for (size_t i = 0; i < x.host.size() / 2; i++) ((float *)x.host.data())[i] = (float)below(20001) * 1e-4f - 1;
  if (c.dtype == DT_F16)
    for (auto &v : x.host) v = (uint16_t)((v & 0x8000) | (0x3000 + below(0xc00)));
  randomize(p.host, 0.2f);
  for (auto &v : bias.host) v = (float)below(1000) * 1e-3f;
  std::vector<int32_t> order(n_y);
  for (int i = 0; i < n_y; i++) order[i] = i;
  std::shuffle(order.begin(), order.end(), rng);
  for (int b = 0; b < c.n_blocks; b++) xs.host[b] = below(n_x), ys.host[b] = order[b];
  if (c.n_blocks > 3) xs.host[1] = -1, xs.host[2] = n_x, ys.host[3] = n_y;
  y.poison(), written.poison();
  x.upload(), p.upload(), bias.upload(), xs.upload(), ys.upload(), y.upload(), written.upload();

  auto point = [&](bool device) {
    a.x = device ? x.device : x.host.data(), a.p = device ? p.device : p.host.data();
    a.y = device ? y.device : y.host.data(), a.written = device ? written.device : written.host.data();
    a.bias = !c.bias ? NULL : device ? bias.device : bias.host.data();
    a.x_blocks = !c.lists ? NULL : device ? xs.device : xs.host.data();
    a.y_blocks = !c.lists ? NULL : device ? ys.device : ys.host.data();
  };
  char what[200], why[256] = "";
  snprintf(what, sizeof what, "project %s: blocks %d x %d, heads %d/%d, %d -> %d%s%s%s dtype %d pad %d", variant, c.n_blocks,
           c.block_size, c.n_heads, c.n_maps, c.head_dim, c.rank, c.lists ? " lists" : "", c.bias ? " bias" : "",
           c.strange ? " strange" : "", c.dtype, c.pad);
  point(true);
  const kernel_variant *v = variant_of(kernel_lowrank_project, variant);
  if (v->refuse && v->refuse(&a, why, sizeof why)) {
    printf("refused %s: %s\n", what, why);
    return;
  }
  for (auto &l : plan_of(kernel_lowrank_project, variant, &a)) launch(l, &a, true);
  MUST(cudaGetLastError());
  MUST(cudaDeviceSynchronize());
  point(false);
  run_reference(kernel_lowrank_project, &a);
  bool exact = !strcmp(variant, "cuda");
  compare(what, y.download(), y.host, from_bf16, exact ? 0 : 1e-5, exact ? 0 : 1 / 128.0);
  auto byte = [](uint8_t v) { return (double)v; };
  compare(std::string(what) + " written", written.download(), written.host, byte, 0, 0);
}

struct score_case {
  int n_rows, n_q_heads, n_kv_heads, rank, n_entries, n_blocks;
  bool lists, shared_list, lengths, written, minmax, strange;
};

static void check_score(const score_case &c, const char *variant, bool mass) {
  int n_pool = c.n_blocks + 7;
  tide_score_blocks_args a = {};
  a.n_rows = c.n_rows, a.n_q_heads = c.n_q_heads, a.n_kv_heads = c.n_kv_heads, a.rank = c.rank, a.n_entries = c.n_entries;
  a.n_pool = n_pool, a.n_blocks = c.n_blocks, a.first_block = 3, a.minmax = c.minmax, a.mass = mass, a.scale = 0.25f;
  a.blocks_stride = c.shared_list ? 0 : c.n_blocks + 1, a.scores_stride = c.n_blocks + 2;
  array<uint16_t> q((size_t)c.n_rows * c.n_q_heads * c.rank), keys((size_t)n_pool * c.n_kv_heads * c.n_entries * c.rank);
  array<uint8_t> written(n_pool);
  array<int32_t> blocks((size_t)c.n_rows * (c.n_blocks + 1)), lengths(c.n_rows);
  array<float> scores((size_t)c.n_rows * (c.n_blocks + 2));
  randomize(q.host, 1), randomize(keys.host, 1, c.strange);
  for (auto &v : written.host) v = below(4) != 0;
  for (auto &v : blocks.host) v = below(n_pool + 2) - 1;
  for (auto &v : lengths.host) v = below(c.n_blocks + 3) - 1;
  if (c.n_rows > 1) lengths.host[c.n_rows / 2] = 0;
  scores.poison();
  q.upload(), keys.upload(), written.upload(), blocks.upload(), lengths.upload(), scores.upload();
  array<float> scratch((size_t)kernel_score_blocks.scratch(&a));
  scratch.poison(), scratch.upload();

  auto point = [&](bool device) {
    a.q = device ? q.device : q.host.data(), a.keys = device ? keys.device : keys.host.data();
    a.scores = device ? scores.device : scores.host.data();
    if (mass) a.scratch = device ? scratch.device : scratch.host.data();
    a.written = !c.written ? NULL : device ? written.device : written.host.data();
    a.blocks = !c.lists ? NULL : device ? blocks.device : blocks.host.data();
    a.lengths = !c.lengths ? NULL : device ? lengths.device : lengths.host.data();
  };
  char what[200], why[256] = "";
  snprintf(what, sizeof what, "score %s %s: rows %d, heads %d/%d, rank %d, entries %d%s, blocks %d%s%s%s%s%s", variant,
           mass ? "mass" : "max", c.n_rows, c.n_q_heads, c.n_kv_heads, c.rank, c.n_entries, c.minmax ? " minmax" : "", c.n_blocks,
           c.lists ? " lists" : "", c.shared_list ? " shared" : "", c.lengths ? " lengths" : "", c.written ? " written" : "",
           c.strange ? " strange" : "");
  point(true);
  const kernel_variant *v = variant_of(kernel_score_blocks, variant);
  if (v->refuse && v->refuse(&a, why, sizeof why)) {
    printf("refused %s: %s\n", what, why);
    return;
  }
  for (auto &l : plan_of(kernel_score_blocks, variant, &a)) launch(l, &a, true);
  MUST(cudaGetLastError());
  MUST(cudaDeviceSynchronize());
  point(false);
  run_reference(kernel_score_blocks, &a);
  bool exact = !strcmp(variant, "cuda") && !mass;
  double absolute = exact ? 0 : mass ? 1e-9 : 1e-4;
  compare(what, scores.download(), scores.host, [](float x) { return (double)x; }, absolute, mass ? 1e-4 : 0);
}

static void check_all() {
  const project_case projects[] = {{1, 16, 8, 1, 128, 32, 0, 0, 0, DT_BF16, 0},   {1, 1, 32, 1, 128, 32, 0, 0, 0, DT_BF16, 0},
                                   {1, 1, 32, 8, 128, 32, 0, 1, 0, DT_BF16, 0},   {9, 1, 32, 8, 128, 32, 1, 1, 0, DT_BF16, 8},
                                   {77, 16, 8, 1, 128, 32, 1, 0, 1, DT_BF16, 0},  {77, 16, 8, 8, 128, 32, 1, 1, 0, DT_BF16, 16},
                                   {300, 16, 8, 1, 128, 32, 0, 0, 1, DT_BF16, 0}, {300, 16, 8, 8, 128, 32, 1, 1, 0, DT_BF16, 0},
                                   {301, 5, 3, 1, 128, 48, 1, 1, 0, DT_BF16, 8},  {301, 5, 6, 3, 64, 16, 1, 1, 0, DT_BF16, 0},
                                   {150, 16, 2, 2, 256, 64, 0, 0, 0, DT_BF16, 0}, {150, 16, 2, 1, 256, 16, 1, 1, 0, DT_BF16, 0},
                                   {200, 32, 4, 1, 64, 64, 0, 1, 0, DT_BF16, 0},  {200, 16, 4, 1, 128, 128, 0, 1, 0, DT_BF16, 0},
                                   {3, 7, 5, 5, 64, 32, 1, 1, 0, DT_BF16, 8},     {2, 16, 2, 1, 256, 112, 0, 0, 0, DT_BF16, 0},
                                   {8192, 16, 8, 1, 128, 32, 0, 0, 0, DT_BF16, 0}};
  for (auto &c : projects) check_project(c, "mma"), check_project(c, "cuda");
  const project_case general[] = {{5, 16, 3, 1, 96, 24, 1, 1, 0, DT_F32, 1},
                                  {5, 16, 3, 3, 33, 7, 1, 1, 0, DT_F16, 5},
                                  {4, 3, 6, 2, 200, 100, 0, 0, 0, DT_BF16, 3},
                                  {1, 1, 24, 1, 256, 40, 0, 0, 0, DT_F32, 0},
                                  {600, 2, 2, 1, 1, 1, 1, 0, 0, DT_BF16, 0}};
  for (auto &c : general) check_project(c, "cuda");

  const score_case scores[] = {{1, 32, 8, 32, 16, 1, 0, 0, 0, 0, 0, 0},     {1, 32, 8, 32, 16, 100, 0, 0, 0, 1, 0, 0},
                               {1, 32, 8, 32, 16, 8192, 0, 0, 0, 0, 0, 0},  {1, 32, 8, 32, 16, 8191, 1, 0, 1, 1, 0, 1},
                               {1, 24, 2, 32, 16, 3000, 1, 0, 1, 1, 0, 1},  {5, 32, 8, 32, 16, 777, 1, 1, 1, 1, 0, 1},
                               {5, 32, 8, 32, 16, 777, 1, 0, 1, 1, 0, 1},   {64, 32, 8, 32, 16, 300, 0, 0, 0, 1, 0, 0},
                               {3, 8, 8, 64, 16, 333, 0, 0, 1, 1, 0, 0},    {17, 8, 8, 16, 16, 97, 0, 0, 1, 1, 0, 0},
                               {2, 16, 1, 128, 16, 500, 1, 1, 1, 1, 0, 0},  {1, 6, 2, 48, 32, 400, 1, 0, 1, 1, 0, 1},
                               {2, 15, 3, 80, 48, 222, 1, 0, 1, 1, 0, 0},   {3, 7, 7, 96, 16, 222, 0, 0, 1, 1, 0, 0},
                               {2, 12, 4, 112, 64, 50, 1, 1, 1, 1, 0, 1},   {7, 24, 2, 32, 16, 120, 0, 0, 0, 0, 0, 0},
                               {1, 64, 64, 32, 16, 100, 0, 0, 0, 1, 0, 0},  {4, 32, 8, 32, 16, 64, 1, 0, 1, 1, 0, 0},
                               {1, 32, 8, 24, 16, 700, 0, 0, 1, 1, 0, 1},   {3, 9, 3, 8, 16, 90, 1, 1, 1, 1, 0, 1},
                               {1, 10, 2, 40, 32, 77, 0, 0, 0, 1, 0, 1},    {1, 32, 32, 256, 16, 40, 1, 0, 1, 0, 0, 0},
                               {1, 16, 16, 32, 16, 5000, 0, 0, 1, 1, 0, 1}, {2, 12, 4, 64, 64, 50, 1, 1, 1, 1, 0, 1},
                               {1, 6, 2, 32, 48, 400, 1, 0, 1, 1, 0, 1},    {3, 32, 8, 128, 32, 70, 0, 0, 1, 1, 0, 1}};
  const score_case means[] = {{1, 32, 8, 128, 1, 1, 0, 0, 0, 0, 0, 0},    {1, 32, 8, 128, 1, 8192, 0, 0, 0, 0, 0, 0},
                              {1, 32, 8, 32, 1, 8191, 1, 0, 1, 1, 0, 1},  {1, 9, 3, 64, 1, 3000, 1, 0, 1, 1, 0, 1},
                              {5, 32, 8, 64, 1, 777, 1, 1, 1, 1, 0, 1},   {5, 32, 8, 128, 1, 777, 1, 0, 1, 1, 0, 1},
                              {2, 16, 2, 128, 1, 17, 0, 0, 1, 1, 0, 1},   {4, 12, 4, 48, 1, 500, 0, 0, 1, 1, 0, 1},
                              {3, 7, 7, 16, 1, 333, 1, 1, 1, 1, 0, 0},    {17, 5, 1, 24, 1, 97, 0, 0, 1, 1, 0, 1},
                              {1, 32, 32, 128, 1, 400, 0, 0, 1, 1, 0, 1}, {1, 64, 64, 256, 1, 90, 0, 0, 0, 1, 0, 0},
                              {64, 32, 8, 32, 1, 300, 0, 0, 0, 1, 0, 0},  {1, 32, 8, 128, 1, 70000, 0, 0, 1, 1, 0, 1}};
  const score_case bounds[] = {{1, 32, 8, 128, 2, 1, 0, 0, 0, 0, 1, 0},  {1, 32, 8, 128, 2, 8192, 0, 0, 0, 0, 1, 0},
                               {1, 9, 3, 64, 2, 3000, 1, 0, 1, 1, 1, 1}, {5, 32, 8, 32, 2, 777, 1, 1, 1, 1, 1, 1},
                               {3, 12, 4, 48, 2, 500, 1, 0, 1, 1, 1, 1}, {2, 7, 7, 256, 2, 333, 0, 0, 1, 1, 1, 1},
                               {17, 5, 1, 24, 2, 97, 0, 0, 1, 1, 1, 1},  {1, 64, 64, 8, 2, 400, 0, 0, 1, 1, 1, 0}};
  const score_case other[] = {{2, 12, 4, 24, 5, 300, 1, 0, 1, 1, 0, 1},
                              {1, 32, 8, 32, 1, 999, 0, 0, 0, 1, 0, 0},
                              {3, 32, 8, 32, 2, 500, 1, 1, 1, 1, 1, 0},
                              {1, 32, 1, 40, 16, 300, 0, 0, 0, 1, 0, 1},
                              {2, 6, 2, 7, 3, 70, 1, 0, 1, 1, 0, 0}};
  for (int mass = 0; mass < 2; mass++) {
    for (auto &c : scores) check_score(c, "mma", mass), check_score(c, "mma_any", mass), check_score(c, "cuda", mass);
    for (auto &c : means) check_score(c, "mma_any", mass), check_score(c, "cuda", mass);
    for (auto &c : bounds) check_score(c, "minmax", mass), check_score(c, "cuda", mass);
    for (auto &c : other) check_score(c, "cuda", mass);
  }
  printf("check: %d comparisons, %d wrong\n", n_done, n_bad);
}

/* ---- times ---- */

typedef std::function<void(int)> step; /* enqueues the i-th of a rotation */

/* Median us of one step. */
static double median_us(const step &enqueue, int n_steps, int n_replays = 21) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaEvent_t from, to;
  MUST(cudaEventCreate(&from));
  MUST(cudaEventCreate(&to));
  enqueue(0);
  MUST(cudaStreamSynchronize(stream));
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < n_steps; i++) enqueue(i);
  MUST(cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<float> times;
  for (int r = -3; r < n_replays; r++) {
    MUST(cudaEventRecord(from, stream));
    MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaEventRecord(to, stream));
    MUST(cudaEventSynchronize(to));
    float ms;
    MUST(cudaEventElapsedTime(&ms, from, to));
    if (r >= 0) times.push_back(ms * 1000 / (float)n_steps);
  }
  MUST(cudaGraphExecDestroy(exec));
  MUST(cudaGraphDestroy(graph));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

__global__ void nothing() {}

__global__ void fill_random(uint32_t *out, int64_t n, uint32_t seed) {
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
    uint64_t x = ((uint64_t)seed << 40 | (uint64_t)i) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ull;
    out[i] = (uint32_t)(x >> 29) & 0x83ff83ffu | 0x3c003c00u; /* bf16 of magnitude 2^-7 to 2 */
  }
}

__global__ void __launch_bounds__(512) read_all(const uint4 *in, int64_t n, uint32_t *out) {
  uint32_t sum = 0;
  int64_t step = (int64_t)gridDim.x * blockDim.x, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 7 * step < n; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = __ldg(in + i + k * step);
#pragma unroll
    for (int k = 0; k < 8; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  for (; i < n; i += step) sum += __ldg(in + i).x;
  if (sum == 0x12345) *out = sum;
}

__global__ void __launch_bounds__(512) copy_all(const uint4 *in, uint4 *out, int64_t n) {
  int64_t step = (int64_t)gridDim.x * blockDim.x, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = __ldcs(in + i + k * step);
#pragma unroll
    for (int k = 0; k < 4; k++) __stcs(out + i + k * step, v[k]);
  }
  for (; i < n; i += step) out[i] = in[i];
}

static char *pool, *outputs;
static const int64_t POOL_BYTES = 2ll << 30, OUTPUT_BYTES = 1ll << 30;
static double read_rate, copy_rate, empty_us; /* bytes per us */

/* Copies: more than 1 GB of either direction a replay; the best of a memcpy and of plain kernels. */
static void measure_ceilings() {
  const int64_t n = 1ll << 29;
  double best = 1e9, copy_us = 1e9;
  for (int ctas : {132, 264, 528, 1056, 2112, 4224, 16896}) {
    auto read = [&](int i) { read_all<<<ctas, 512, 0, stream>>>((uint4 *)(pool + i % 4 * n), n / 16, (uint32_t *)outputs); };
    best = std::min(best, median_us(read, 8));
  }
  double memcpy_us = median_us(
      [&](int i) { MUST(cudaMemcpyAsync(outputs + i % 2 * n, pool + i % 4 * n, n, cudaMemcpyDeviceToDevice, stream)); }, 8);
  for (int ctas : {264, 528, 1056, 2112, 4224, 16896, 65536}) {
    auto copy = [&](int i) {
      copy_all<<<ctas, 512, 0, stream>>>((uint4 *)(pool + i % 4 * n), (uint4 *)(outputs + i % 2 * n), n / 16);
    };
    copy_us = std::min(copy_us, median_us(copy, 8));
  }
  read_rate = (double)n / best;
  copy_rate = 2.0 * (double)n / std::min(memcpy_us, copy_us);
  empty_us = median_us([&](int) { nothing<<<1, 32, 0, stream>>>(); }, 200);
  printf("ceilings: read %.3f TB/s, copy %.3f TB/s (memcpy %.3f, kernel %.3f), empty graph node %.2f us\n", read_rate * 1e-6,
         copy_rate * 1e-6, 2e-6 * (double)n / memcpy_us, 2e-6 * (double)n / copy_us, empty_us);
}

static void row(const char *what, const char *how, double us, double floor_us) {
  printf("%-34s %-26s %9.2f us   floor %7.2f   %5.2f x floor   %5.2f x (floor + node)\n", what, how, us, floor_us, us / floor_us,
         us / (floor_us + empty_us));
}

static std::vector<kernel_launch> with_grid(std::vector<kernel_launch> plan, int axis, int64_t n, int block) {
  for (auto &l : plan) {
    if (n) l.grid[axis] = (unsigned)n;
    if (block) l.block[0] = (unsigned)block;
  }
  return plan;
}

struct project_bench {
  tide_lowrank_project_args a = {};
  int n_sets;
  int64_t x_bytes, y_bytes;

  project_bench(int n_blocks, int block_size, int n_heads, int n_maps) {
    a.x_dtype = DT_BF16, a.n_blocks = a.n_x_blocks = a.n_y_blocks = n_blocks, a.block_size = block_size, a.n_heads = n_heads,
    a.n_maps = n_maps;
    a.head_dim = 128, a.rank = 32, a.x_head_stride = 128, a.x_token_stride = 128 * n_heads,
    a.x_block_stride = a.x_token_stride * block_size;
    a.p = (const uint16_t *)(outputs + OUTPUT_BYTES - (1 << 20));
    x_bytes = n_blocks * a.x_block_stride * 2, y_bytes = x_bytes / 4;
    n_sets = (int)std::min<int64_t>(64, POOL_BYTES / x_bytes);
  }
  double time(const std::vector<kernel_launch> &plan, bool overlap) {
    return median_us(
        [&](int i) {
          tide_lowrank_project_args b = a;
          b.x = pool + i % n_sets * x_bytes, b.y = (uint16_t *)(outputs + i % std::min(n_sets, 8) * y_bytes);
          for (auto &l : plan) launch(l, &b, overlap);
        },
        x_bytes > 1 << 26 ? 8 : 64);
  }
  double floor_us() const { return (double)(x_bytes + y_bytes) / copy_rate; }
};

struct score_bench {
  tide_score_blocks_args a = {};
  int n_sets;
  int64_t key_bytes;

  score_bench(int n_blocks, int n_rows, bool mass, int n_entries = 16, int rank = 32) {
    a.n_rows = n_rows, a.n_q_heads = 32, a.n_kv_heads = 8, a.rank = rank, a.n_entries = n_entries;
    a.n_pool = a.n_blocks = n_blocks, a.mass = mass, a.minmax = n_entries == 2, a.scale = 0.1f, a.scores_stride = n_blocks;
    key_bytes = (int64_t)n_blocks * 8 * n_entries * rank * 2;
    n_sets = (int)std::max<int64_t>(1, std::min<int64_t>(32, POOL_BYTES / key_bytes));
    a.q = (const uint16_t *)(outputs + OUTPUT_BYTES - (1 << 20)), a.scratch = (float *)(outputs + (1 << 28));
    a.scores = (float *)outputs;
  }
  step steps(const std::vector<kernel_launch> &plan, bool overlap) {
    return [=, this](int i) {
      tide_score_blocks_args b = a;
      b.keys = (const uint16_t *)(pool + i % n_sets * key_bytes);
      for (auto &l : plan) launch(l, &b, overlap);
    };
  }
  double time(const std::vector<kernel_launch> &plan, bool overlap) {
    return median_us(steps(plan, overlap), key_bytes > 1 << 28 ? 8 : 32);
  }
  double floor_us() const { return (double)(key_bytes + 4ll * a.n_blocks * a.n_rows) / read_rate; }
};

static void bench_project(bool tune) {
  for (int n_maps : {1, 8}) {
    project_bench b(8192, 16, 8, n_maps);
    auto plan = plan_of(kernel_lowrank_project, "mma", &b.a);
    const char *what = n_maps == 1 ? "project 128k, one map" : "project 128k, a map per head";
    row(what, "", b.time(plan, false), b.floor_us());
    row(what, "overlapping", b.time(plan, true), b.floor_us());
    for (int ctas : {132, 264, 396, 528, 1056, 2112, 4096})
      if (tune)
        row(what, ("ctas " + std::to_string(ctas)).c_str(), b.time(with_grid(plan, 0, ctas / n_maps, 0), false), b.floor_us());
  }
  struct {
    const char *what;
    int n_blocks, block_size, n_heads, n_maps;
  } small[] = {{"project one block", 1, 16, 8, 1},     {"project one block, map per head", 1, 16, 8, 8},
               {"project q of 32 heads", 1, 1, 32, 1}, {"project q, 8 maps", 1, 1, 32, 8},
               {"project 8 blocks", 8, 16, 8, 1},      {"project 64 blocks", 64, 16, 8, 1},
               {"project 128 blocks", 128, 16, 8, 1},  {"project 512 blocks", 512, 16, 8, 1}};
  for (auto &s : small) {
    project_bench b(s.n_blocks, s.block_size, s.n_heads, s.n_maps);
    for (const char *variant : {"mma", "cuda"}) {
      auto plan = plan_of(kernel_lowrank_project, variant, &b.a);
      row(s.what, variant, b.time(plan, false), b.floor_us());
      row(s.what, (std::string(variant) + " overlapping").c_str(), b.time(plan, true), b.floor_us());
    }
    auto plan = plan_of(kernel_lowrank_project, "mma", &b.a);
    for (int warps : {1, 2, 4, 8})
      if (tune && strstr(plan[0].entry, "spread"))
        row(s.what, ("warps " + std::to_string(warps)).c_str(),
            b.time(with_grid(plan, 0, std::max<int64_t>(1, plan[0].grid[0] * 4 / warps), warps * 32), false), b.floor_us());
  }
}

static void bench_scores(const char *what, const char *variant, score_bench b, bool tune) {
  auto plan = plan_of(kernel_score_blocks, variant, &b.a);
  row(what, "", b.time(plan, false), b.floor_us());
  row(what, "overlapping", b.time(plan, true), b.floor_us());
  for (int parts : {132, 198, 264, 396, 528, 792, 1024})
    if (tune && b.a.n_blocks >= 8192 && b.a.n_rows == 1)
      row(what, ("parts " + std::to_string(parts)).c_str(), b.time(with_grid(plan, 1, parts, 0), false), b.floor_us());
}

/* The predictor's two launches. */
static void bench_q_then_score(const char *what, int n_blocks, bool mass) {
  project_bench p(1, 1, 32, 1);
  score_bench b(n_blocks, 1, mass);
  auto project = plan_of(kernel_lowrank_project, "mma", &p.a), score = plan_of(kernel_score_blocks, "mma", &b.a);
  p.a.x = pool, p.a.y = (uint16_t *)b.a.q;
  for (int overlap = 0; overlap < 2; overlap++) {
    auto scores = b.steps(score, overlap);
    double both = median_us([&](int i) { launch(project[0], &p.a, overlap), scores(i); }, 32);
    row(what, overlap ? "overlapping" : "", both, b.floor_us());
  }
}

static void bench_score(bool tune) {
  struct {
    const char *what;
    int n_blocks, n_rows, n_entries, rank;
  } cases[] = {{"1k", 64, 1, 16, 32}, {"16k", 1024, 1, 16, 32},
               {"128k", 8192, 1, 16, 32}, {"1M", 65536, 1, 16, 32},
               {"128k, 4 rows", 8192, 4, 16, 32}, {"128k, 16 rows", 8192, 16, 16, 32},
               {"128k, rank 16", 8192, 1, 16, 16}, {"128k, rank 64", 8192, 1, 16, 64},
               {"16k, means of 128", 1024, 1, 1, 128}, {"128k, means of 128", 8192, 1, 1, 128},
               {"1M, means of 128", 65536, 1, 1, 128}, {"128k, means of 32", 8192, 1, 1, 32},
               {"1M, means of 32", 65536, 1, 1, 32}, {"16k, bounds of 128", 1024, 1, 2, 128},
               {"128k, bounds of 128", 8192, 1, 2, 128}, {"1M, bounds of 128", 65536, 1, 2, 128},
               {"128k, bounds of 32", 8192, 1, 2, 32}};
  for (int mass = 0; mass < 2; mass++)
    for (auto &c : cases) {
      const char *variant = c.n_entries == 2 ? "minmax" : c.n_entries == 1 ? "mma_any" : "mma";
      score_bench b(c.n_blocks, c.n_rows, mass, c.n_entries, c.rank);
      bench_scores((std::string(mass ? "mass " : "score ") + c.what).c_str(), variant, b, tune);
    }
  bench_q_then_score("q, then score 16k", 1024, false);
  bench_q_then_score("q, then score 128k", 8192, false);
  bench_q_then_score("q, then mass 128k", 8192, true);
}

int main(int argc, char **argv) {
  auto wants = [&](const char *word) { return std::any_of(argv + 1, argv + argc, [&](char *s) { return !strcmp(s, word); }); };
  if (argc < 2) return printf("usage: gpu_check FOLDER-OF-CUBINS [check] [bench] [tune]\n"), 2;
  folder = argv[1];
  cudaDeviceProp device;
  MUST(cudaGetDeviceProperties(&device, 0));
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  caps = {KERNEL_CUDA, device.major * 10 + device.minor, device.multiProcessorCount, (int)device.sharedMemPerBlockOptin};
  printf("%s, sm_%d, %d processors, %d bytes of shared memory\n", device.name, caps.level, caps.n_processors, caps.smem_bytes);
  if (wants("check")) check_all();
  if (wants("bench") || wants("tune")) {
    MUST(cudaMalloc(&pool, POOL_BYTES));
    MUST(cudaMalloc(&outputs, OUTPUT_BYTES));
    fill_random<<<1024, 256, 0, stream>>>((uint32_t *)pool, POOL_BYTES / 4, 1);
    fill_random<<<1024, 256, 0, stream>>>((uint32_t *)outputs, OUTPUT_BYTES / 4, 2);
    measure_ceilings();
    bench_project(wants("tune"));
    bench_score(wants("tune"));
  }
  MUST(cudaDeviceSynchronize());
  return n_bad ? 1 : 0;
}
