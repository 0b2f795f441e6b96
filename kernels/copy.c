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
  int64_t bytes = copy_bytes(a->src_dtype);
  (void)phase;
  for (int64_t item = first; item < last; item++) {
    int64_t rest = item, from = 0, to = 0;
    for (int d = a->n_dims - 1; d >= 0; d--) {
      from += rest % a->shape[d] * a->src_stride[d];
      to += rest % a->shape[d] * a->dst_stride[d];
      rest /= a->shape[d];
    }
    if (a->src_dtype == a->dst_dtype) memcpy((char *)a->dst + to * bytes, (const char *)a->src + from * bytes, (size_t)bytes);
    else if (is_float(a->src_dtype) && is_float(a->dst_dtype)) store_f64(a->dst, a->dst_dtype, to, load_f32(a->src, a->src_dtype, from));
    else store_f64(a->dst, a->dst_dtype, to, load_f64(a->src, a->src_dtype, from));
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
    {.name = "cuda", .backend = KERNEL_CUDA, .level = 80, .plan = plan},
};

const kernel kernel_copy = {.name = "copy", .args_bytes = sizeof(tide_copy_args), .check = check, .n_phases = 1,
                            .n_items = n_items, .n_variants = sizeof variants / sizeof *variants, .variants = variants};
