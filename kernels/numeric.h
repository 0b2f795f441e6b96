/* numeric.h: conversions between the stored dtypes and f32, exact and rounding to nearest even. Shared by every CPU body. */
#ifndef TIDE_NUMERIC_H
#define TIDE_NUMERIC_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "kernel.h"

static inline float bits_f32(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline uint32_t f32_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float bf16_to_f32(uint16_t x) { return bits_f32((uint32_t)x << 16); }

/* NaN stays NaN (quiet); overflow becomes infinity. */
static inline uint16_t f32_to_bf16(float x) {
  uint32_t u = f32_bits(x);
  if (x != x) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float f16_to_f32(uint16_t x) {
  uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, mantissa = x & 1023;
  if (exponent == 31) return bits_f32(sign | 0x7f800000u | mantissa << 13);
  if (exponent) return bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
  float value = (float)mantissa * 0x1p-24f;
  return sign ? -value : value;
}

static inline uint16_t f32_to_f16(float x) {
  uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
  if (a >= 0x47800000u) return (uint16_t)(sign | 0x7c00);
  if (a < 0x38800000u) return (uint16_t)(sign | (uint32_t)lrintf(bits_f32(a) * 0x1p24f));
  return (uint16_t)(sign | ((a + 0xfff + (a >> 13 & 1) - 0x38000000u) >> 13));
}

/* e4m3: no infinity, NaN is 0x7f; largest 448. */
static inline float f8_to_f32(uint8_t x) {
  uint32_t exponent = x >> 3 & 15, mantissa = x & 7;
  float value;
  if ((x & 0x7f) == 0x7f) return bits_f32(0x7fc00000u);
  if (exponent) value = bits_f32((exponent + 120) << 23 | mantissa << 20);
  else value = (float)mantissa * 0x1p-9f;
  return x & 0x80 ? -value : value;
}

static inline uint8_t f32_to_f8(float x) {
  uint32_t sign = f32_bits(x) >> 24 & 0x80, a = f32_bits(x) & 0x7fffffffu;
  if (x != x) return 0x7f;
  if (a >= 0x43e80000u) return (uint8_t)(sign | 0x7e);
  if (a < 0x3c800000u) return (uint8_t)(sign | (uint32_t)lrintf(bits_f32(a) * 0x1p9f));
  uint32_t rounded = (a + 0x7ffff + (a >> 20 & 1) - 0x3c000000u) >> 20;
  return (uint8_t)(sign | (rounded > 0x7e ? 0x7e : rounded));
}

static inline float load_f32(const void *data, int32_t dtype, int64_t i) {
  switch (dtype) {
    case DT_F32: return ((const float *)data)[i];
    case DT_F16: return f16_to_f32(((const uint16_t *)data)[i]);
    case DT_BF16: return bf16_to_f32(((const uint16_t *)data)[i]);
    case DT_F8E4M3: return f8_to_f32(((const uint8_t *)data)[i]);
    default: return 0;
  }
}

#endif
