/* simd.h: a thin layer of f32 vectors for NAME_simd.c, which is compiled once for x86-64-v3 (8 lanes) and once for
 * x86-64-v4 (16 lanes). Sums run in a fixed order, so a result never depends on how the items were spread over threads.
 *   vf   LANES f32; + - * are the compiler's own operators
 *   vi   LANES i32
 */
#ifndef TIDE_SIMD_H
#define TIDE_SIMD_H
#include <immintrin.h>
#include "numeric.h"

#define SIMD_JOIN(name, level) name##_##level
#define SIMD_EXPAND(name, level) SIMD_JOIN(name, level)
#define SIMD_NAME(name) SIMD_EXPAND(name, KERNEL_LEVEL)   /* the function's name at this level */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__

enum { LANES = 16 };
typedef __m512 vf;
typedef __m512i vi;

ALWAYS_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
ALWAYS_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
/* b when either is NaN. */
ALWAYS_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
ALWAYS_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
/* x where it is a number, else y. */
ALWAYS_INLINE vf vf_number_or(vf x, vf y) { return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x); }
/* x where a == b, else y. */
ALWAYS_INLINE vf vf_where_equal(vf a, vf b, vf x, vf y) {
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), x);
}
ALWAYS_INLINE vf vf_round(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE vf vf_of_bits(vi x) { return _mm512_castsi512_ps(x); }
ALWAYS_INLINE vi vf_bits(vf x) { return _mm512_castps_si512(x); }
ALWAYS_INLINE vf vf_of_ints(vi x) { return _mm512_cvtepi32_ps(x); }

ALWAYS_INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
ALWAYS_INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
ALWAYS_INLINE void vi_store(void *p, vi x) { _mm512_storeu_si512(p, x); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
#define vi_shift_left(x, n) _mm512_slli_epi32(x, n)
#define vi_shift_right(x, n) _mm512_srli_epi32(x, n)
#define vi_shift_sign(x, n) _mm512_srai_epi32(x, n)

ALWAYS_INLINE vi vi_load_u16(const void *p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256(p)); }
ALWAYS_INLINE vi vi_load_u8(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
/* The first n 16-bit values, zeros after them; nothing beyond them is read. */
ALWAYS_INLINE vi vi_load_halves(const uint16_t *p, int n) {
  return _mm512_maskz_loadu_epi16(n < 32 ? (1u << n) - 1 : 0xffffffffu, p);
}
ALWAYS_INLINE void vi_store_u16(void *p, vi x) { _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(x)); }
ALWAYS_INLINE vf vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
ALWAYS_INLINE vf vf_of_f16(vi x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }
/* p * 2^n of whole n. */
ALWAYS_INLINE vf vf_scale_by_power(vf p, vf n) { return _mm512_scalef_ps(p, n); }

ALWAYS_INLINE float vf_top(vf x) { return _mm512_reduce_max_ps(x); }   /* of numbers */
ALWAYS_INLINE float vf_sum(vf x) { return _mm512_reduce_add_ps(x); }

/* v[i] lane j becomes v[j] lane i. */
ALWAYS_INLINE void vi_transpose(vi v[LANES]) {
  vi a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int half = 0; half < 2; half++) {
      b[i + 2 * half] = _mm512_unpacklo_epi64(a[i + half], a[i + 2 + half]);
      b[i + 2 * half + 1] = _mm512_unpackhi_epi64(a[i + half], a[i + 2 + half]);
    }
  for (int i = 0; i < 4; i++) {
    a[i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88);
    a[4 + i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
    a[8 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
    a[12 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; i++) {
    v[i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0x88);
    v[4 + i] = _mm512_shuffle_i32x4(a[4 + i], a[12 + i], 0x88);
    v[8 + i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0xdd);
    v[12 + i] = _mm512_shuffle_i32x4(a[4 + i], a[12 + i], 0xdd);
  }
}

#else

enum { LANES = 8 };
typedef __m256 vf;
typedef __m256i vi;

ALWAYS_INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
ALWAYS_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
ALWAYS_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
ALWAYS_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
ALWAYS_INLINE vf vf_number_or(vf x, vf y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_ORD_Q)); }
ALWAYS_INLINE vf vf_where_equal(vf a, vf b, vf x, vf y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
ALWAYS_INLINE vf vf_round(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE vf vf_of_bits(vi x) { return _mm256_castsi256_ps(x); }
ALWAYS_INLINE vi vf_bits(vf x) { return _mm256_castps_si256(x); }
ALWAYS_INLINE vf vf_of_ints(vi x) { return _mm256_cvtepi32_ps(x); }

ALWAYS_INLINE vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
ALWAYS_INLINE vi vi_load(const void *p) { return _mm256_loadu_si256(p); }
ALWAYS_INLINE void vi_store(void *p, vi x) { _mm256_storeu_si256(p, x); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
#define vi_shift_left(x, n) _mm256_slli_epi32(x, n)
#define vi_shift_right(x, n) _mm256_srli_epi32(x, n)
#define vi_shift_sign(x, n) _mm256_srai_epi32(x, n)

ALWAYS_INLINE __m128i vi_low_halves(vi x) {
  vi packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
  return _mm256_castsi256_si128(packed);
}
ALWAYS_INLINE vi vi_load_u16(const void *p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128(p)); }
ALWAYS_INLINE vi vi_load_u8(const void *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); }
ALWAYS_INLINE vi vi_load_halves(const uint16_t *p, int n) {
  if (n == 16) return vi_load(p);
  uint16_t some[16] = {0};
  for (int i = 0; i < n; i++) some[i] = p[i];
  return vi_load(some);
}
ALWAYS_INLINE void vi_store_u16(void *p, vi x) { _mm_storeu_si128(p, vi_low_halves(x)); }
ALWAYS_INLINE vf vf_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
ALWAYS_INLINE vf vf_of_f16(vi x) { return _mm256_cvtph_ps(vi_low_halves(x)); }
/* In two steps, so that subnormal results are rounded once and nothing overflows on the way. */
ALWAYS_INLINE vf vf_scale_by_power(vf p, vf n) {
  vi whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
  vf a = vf_of_bits(_mm256_slli_epi32(_mm256_add_epi32(half, vi_set(127)), 23));
  vf b = vf_of_bits(_mm256_slli_epi32(_mm256_add_epi32(rest, vi_set(127)), 23));
  return p * a * b;
}

ALWAYS_INLINE float vf_top(vf x) {
  __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
ALWAYS_INLINE float vf_sum(vf x) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

ALWAYS_INLINE void vi_transpose(vi v[LANES]) {
  vi a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int half = 0; half < 2; half++) {
      b[i + 2 * half] = _mm256_unpacklo_epi64(a[i + half], a[i + 2 + half]);
      b[i + 2 * half + 1] = _mm256_unpackhi_epi64(a[i + half], a[i + 2 + half]);
    }
  for (int i = 0; i < 4; i++) {
    v[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
    v[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
  }
}

#endif

/* ---- both levels ------------------------------------------------------------------------------------------------- */

ALWAYS_INLINE void vf_transpose(vf v[LANES]) {
  vi bits[LANES];
  for (int i = 0; i < LANES; i++) bits[i] = vf_bits(v[i]);
  vi_transpose(bits);
  for (int i = 0; i < LANES; i++) v[i] = vf_of_bits(bits[i]);
}

/* The bf16 in the low and in the high half of every 32 bits. */
ALWAYS_INLINE vf vf_of_low_bf16(vi pairs) { return vf_of_bits(vi_shift_left(pairs, 16)); }
ALWAYS_INLINE vf vf_of_high_bf16(vi pairs) { return vf_of_bits(vi_and(pairs, vi_set((int32_t)0xffff0000u))); }

/* e4m3 has the layout of an f16 shifted by 7, 2^8 too small; exact, subnormals included. */
ALWAYS_INLINE vf vf_load_f8(const void *p) {
  vi x = vi_load_u8(p), size = vi_and(x, vi_set(0x7f)), sign = vi_shift_left(vi_and(x, vi_set(0x80)), 8);
  vf value = vf_of_f16(vi_or(vi_shift_left(size, 7), sign)) * vf_set(256);
  return vf_where_equal(vf_of_ints(size), vf_set(0x7f), vf_set(NAN), value);
}

/* LANES elements from the i-th on. A constant dtype costs nothing. */
ALWAYS_INLINE vf vf_load_as(const void *data, int32_t dtype, int64_t i) {
  switch (dtype) {
    case DT_F32: return vf_load((const float *)data + i);
    case DT_F16: return vf_load_f16((const uint16_t *)data + i);
    case DT_BF16: return vf_of_bits(vi_shift_left(vi_load_u16((const uint16_t *)data + i), 16));
    default: return vf_load_f8((const uint8_t *)data + i);
  }
}

/* n < LANES elements, zeros after them; nothing beyond them is read. */
static __attribute__((noinline, unused)) vf vf_load_some(const void *data, int32_t dtype, int64_t i, int n) {
  float x[LANES] = {0};
  for (int j = 0; j < n; j++) x[j] = load_f32(data, dtype, i + j);
  return vf_load(x);
}

/* n elements into out, which has room for whole vectors and is zero after them. */
ALWAYS_INLINE void load_row(const void *data, int32_t dtype, int64_t i, int n, float *out) {
  int j = 0;
  for (; j + LANES <= n; j += LANES) vf_store(out + j, vf_load_as(data, dtype, i + j));
  if (j < n) vf_store(out + j, vf_load_some(data, dtype, i + j, n - j));
}

/* Nearest even; NaN stays NaN. Writes the first n <= LANES. */
ALWAYS_INLINE void vf_store_bf16(uint16_t *p, vf x, int n) {
  vi u = vf_bits(x), odd = vi_and(vi_shift_right(u, 16), vi_set(1));
  vf quiet = vf_of_bits(vi_shift_right(vi_or(u, vi_set(0x400000)), 16));
  vf rounded = vf_of_bits(vi_shift_right(vi_add(vi_add(u, vi_set(0x7fff)), odd), 16));
  vi bits = vf_bits(vf_where_equal(x, x, rounded, quiet));
  if (n == LANES) {
    vi_store_u16(p, bits);
    return;
  }
  uint16_t some[LANES];
  vi_store_u16(some, bits);
  memcpy(p, some, (size_t)n * sizeof *p);
}

/* Within 1.1 ulp of exp(x) (every 7th float was tried); 0 below -104, infinity above 88.73, NaN of NaN. */
ALWAYS_INLINE vf vf_exp(vf x) {
  x = vf_max(vf_set(-105), vf_min(vf_set(90), x));
  vf n = vf_round(x * vf_set(1.44269504088896341f));
  vf r = vf_fma(n, vf_set(2.12194440e-4f), vf_fma(n, vf_set(-0.693359375f), x));
  vf p = vf_set(1.9875691500e-4f);
  p = vf_fma(p, r, vf_set(1.3981999507e-3f));
  p = vf_fma(p, r, vf_set(8.3334519073e-3f));
  p = vf_fma(p, r, vf_set(4.1665795894e-2f));
  p = vf_fma(p, r, vf_set(1.6666665459e-1f));
  p = vf_fma(p, r, vf_set(5.0000001201e-1f));
  p = vf_fma(p, r * r, r) + vf_set(1);
  return vf_scale_by_power(p, n);
}

/* Within 1 ulp of log(x) (likewise) for normal x > 0; -infinity of 0; log(1) is 0. Other inputs are not served. */
ALWAYS_INLINE vf vf_log(vf x) {
  vi u = vi_add(vf_bits(x), vi_set(0x3f800000 - 0x3f3504f3));   /* mantissa within sqrt(1/2) .. sqrt(2) */
  vf n = vf_of_ints(vi_add(vi_shift_sign(u, 23), vi_set(-127)));
  vf m = vf_of_bits(vi_add(vi_and(u, vi_set(0x007fffff)), vi_set(0x3f3504f3))) - vf_set(1);
  vf p = vf_set(7.0376836292e-2f), z = m * m;
  p = vf_fma(p, m, vf_set(-1.1514610310e-1f));
  p = vf_fma(p, m, vf_set(1.1676998740e-1f));
  p = vf_fma(p, m, vf_set(-1.2420140846e-1f));
  p = vf_fma(p, m, vf_set(1.4249322787e-1f));
  p = vf_fma(p, m, vf_set(-1.6668057665e-1f));
  p = vf_fma(p, m, vf_set(2.0000714765e-1f));
  p = vf_fma(p, m, vf_set(-2.4999993993e-1f));
  p = vf_fma(p, m, vf_set(3.3333331174e-1f));
  vf tail = vf_fma(n, vf_set(-2.12194440e-4f), p * z * m) - vf_set(0.5f) * z;
  return vf_where_equal(x, vf_set(0), vf_set(-INFINITY), vf_fma(n, vf_set(0.693359375f), m + tail));
}

#endif
