/* copy.c: reference and variants of copy (see copy.h). */
#include <stdio.h>
#include "copy_dims.h"
#include "numeric.h"

static bool is_float(int32_t dtype) { return dtype >= DT_F32 && dtype <= DT_F8E4M3; }

static bool check(const void *args, char *why, size_t why_bytes) {
  const tide_copy_args *a = args;
  if (!copy_bytes(a->dst_dtype) || !copy_bytes(a->src_dtype) || a->n_dims < 0 || a->n_dims > 5) {
    snprintf(why, why_bytes, "dtype or n_dims out of range (got %d <- %d, %d dims)", a->dst_dtype, a->src_dtype, a->n_dims);
    return true;
  }
  return false;
}

static int64_t n_items(const void *args, int phase) {
  const tide_copy_args *a = args;
  int64_t n = 1;
  (void)phase;
  for (int i = 0; i < a->n_dims; i++) n *= a->shape[i];
  return n;
}

static double load_f64(const void *data, int32_t dtype, int64_t i) {
  switch (dtype) {
    case DT_I32: return ((const int32_t *)data)[i];
    case DT_U32: return ((const uint32_t *)data)[i];
    case DT_I64: return (double)((const int64_t *)data)[i];
    case DT_U8: return ((const uint8_t *)data)[i];
    default: return (double)load_f32(data, dtype, i);
  }
}

/* Nearest even, held within low .. high; NaN gives 0. high is the largest f64 that the type holds. */
static double to_integer(double x, double low, double high) {
  if (x != x) return 0;
  x = nearbyint(x);
  return x < low ? low : x > high ? high : x;
}

static void store_f64(void *data, int32_t dtype, int64_t i, double x) {
  switch (dtype) {
    case DT_F32: ((float *)data)[i] = (float)x; break;
    case DT_F16: ((uint16_t *)data)[i] = f32_to_f16((float)x); break;
    case DT_BF16: ((uint16_t *)data)[i] = f32_to_bf16((float)x); break;
    case DT_F8E4M3: ((uint8_t *)data)[i] = f32_to_f8((float)x); break;
    case DT_I32: ((int32_t *)data)[i] = (int32_t)to_integer(x, -2147483648.0, 2147483647.0); break;
    case DT_U32: ((uint32_t *)data)[i] = (uint32_t)to_integer(x, 0, 4294967295.0); break;
    case DT_I64: ((int64_t *)data)[i] = (int64_t)to_integer(x, -0x1p63, 0x1.fffffffffffffp62); break;
    case DT_U8: ((uint8_t *)data)[i] = (uint8_t)to_integer(x, 0, 255); break;
  }
}

static void ref(const void *args, int phase, int64_t first, int64_t last) {
  const tide_copy_args *a = args;
  const void *src = copy_source(a);
  int64_t bytes = copy_bytes(a->src_dtype);
  (void)phase;
  for (int64_t item = first; item < last; item++) {
    int64_t rest = item, from = 0, to = 0;
    for (int d = a->n_dims - 1; d >= 0; d--) {
      from += rest % a->shape[d] * a->src_stride[d];
      to += rest % a->shape[d] * a->dst_stride[d];
      rest /= a->shape[d];
    }
    if (a->src_dtype == a->dst_dtype) memcpy((char *)a->dst + to * bytes, (const char *)src + from * bytes, (size_t)bytes);
    else if (is_float(a->src_dtype) && is_float(a->dst_dtype)) store_f64(a->dst, a->dst_dtype, to, load_f32(src, a->src_dtype, from));
    else store_f64(a->dst, a->dst_dtype, to, load_f64(src, a->src_dtype, from));
  }
}

/* ---- runs: elements along the last of the joined dimensions ---- */

typedef struct run {
  const tide_copy_args *a;
  const void *src;
  int64_t to, from, to_step, from_step, n;   /* elements */
} run;

/* Steps of 1 and 0 are worth a loop of their own: rows and fills. */
#define MOVE_RUN(type)                                                                         \
  do {                                                                                         \
    type *to = (type *)r.a->dst + r.to;                                                        \
    const type *from = (const type *)r.src + r.from, first = *from;                         \
    if (r.to_step == 1 && r.from_step == 0)                                                    \
      for (int64_t i = 0; i < r.n; i++) to[i] = first;                                         \
    else                                                                                       \
      for (int64_t i = 0; i < r.n; i++) to[i * r.to_step] = from[i * r.from_step];             \
  } while (0)

static void move_run(run r) {
  int bytes = copy_bytes(r.a->src_dtype);
  if (r.to_step == 1 && r.from_step == 1)
    memcpy((char *)r.a->dst + r.to * bytes, (const char *)r.src + r.from * bytes, (size_t)(r.n * bytes));
  else if (bytes == 1) MOVE_RUN(uint8_t);
  else if (bytes == 2) MOVE_RUN(uint16_t);
  else if (bytes == 4) MOVE_RUN(uint32_t);
  else MOVE_RUN(uint64_t);
}

#define STORE_RUN(type, convert)                                                               \
  for (int i = 0; i < n; i++) ((type *)r.a->dst)[r.to + i * r.to_step] = convert(x[i])

/* Floats by way of f32, a piece at a time. */
static void convert_run(run r) {
  float x[256];
  for (int n; r.n > 0; r.n -= n, r.to += n * r.to_step, r.from += n * r.from_step) {
    n = r.n < 256 ? (int)r.n : 256;
    for (int i = 0; i < n; i++) x[i] = load_f32(r.src, r.a->src_dtype, r.from + i * r.from_step);
    switch (r.a->dst_dtype) {
      case DT_F32: STORE_RUN(float, ); break;
      case DT_F16: STORE_RUN(uint16_t, f32_to_f16); break;
      case DT_BF16: STORE_RUN(uint16_t, f32_to_bf16); break;
      default: STORE_RUN(uint8_t, f32_to_f8); break;
    }
  }
}

static void convert_integers(run r) {
  for (int64_t i = 0; i < r.n; i++)
    store_f64(r.a->dst, r.a->dst_dtype, r.to + i * r.to_step, load_f64(r.src, r.a->src_dtype, r.from + i * r.from_step));
}

static void runs(const void *args, int phase, int64_t first, int64_t last) {
  const tide_copy_args *a = args;
  void (*copy_run)(run) = a->src_dtype == a->dst_dtype ? move_run
                          : is_float(a->src_dtype) && is_float(a->dst_dtype) ? convert_run : convert_integers;
  copy_dims dims;
  (void)phase;
  copy_join(a, &dims);
  int inner = dims.n - 1;
  run r = {.a = a, .src = copy_source(a), .to_step = dims.dst_stride[inner], .from_step = dims.src_stride[inner]};
  for (int64_t item = first; item < last; item += r.n) {
    int64_t at = item % dims.shape[inner], rest = item / dims.shape[inner];
    r.to = at * r.to_step, r.from = at * r.from_step;
    r.n = last - item < dims.shape[inner] - at ? last - item : dims.shape[inner] - at;
    for (int d = inner - 1; d >= 0; d--) {
      r.to += rest % dims.shape[d] * dims.dst_stride[d];
      r.from += rest % dims.shape[d] * dims.src_stride[d];
      rest /= dims.shape[d];
    }
    copy_run(r);
  }
}

/* ---- geometry of copy.cu ---- */

static int plan(const void *args, const kernel_caps *caps, kernel_launch *out) {
  static const char *const moves[] = {"copy_move_1", "copy_move_2", "copy_move_4", "copy_move_8", "copy_move_16"};
  const tide_copy_args *a = args;
  bool equal = a->src_dtype == a->dst_dtype, floats = is_float(a->src_dtype) && is_float(a->dst_dtype);
  int bytes = copy_bytes(a->src_dtype), width = equal ? 16 / bytes : floats ? COPY_CAST_WIDTH : 1, word = 0;
  copy_dims dims;
  if (n_items(args, 0) == 0) return 0;
  copy_join(a, &dims);
  while (width > 1 && !copy_fits(a, &dims, width)) width = equal ? width / 2 : 1;
  copy_widen(&dims, width);
  while (1 << word < width * bytes) word++;
  int64_t a_block = equal ? 256 * COPY_IN_FLIGHT : 256, n = copy_count(&dims) / a_block + 1, most = 8 * caps->n_processors;
  *out = (kernel_launch){.fatbin = "copy", .entry = equal ? moves[word] : width > 1 ? "copy_cast_8" : "copy_cast",
                         .grid = {(unsigned)(n < most ? n : most), 1, 1}, .block = {256, 1, 1}};
  return 1;
}

static const kernel_variant variants[] = {
    {.name = "ref", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = ref},
    {.name = "runs", .backend = KERNEL_CPU, .level = CPU_PLAIN, .run = runs},
    {.name = "cuda", .backend = KERNEL_CUDA, .level = 80, .plan = plan},
};

const kernel kernel_copy = {.name = "copy", .args_bytes = sizeof(tide_copy_args), .check = check, .n_phases = 1,
                            .n_items = n_items, .n_variants = sizeof variants / sizeof *variants, .variants = variants};
