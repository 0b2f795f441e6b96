/* base.h: what every file of the runtime uses: status plumbing, checked sizes, dtypes. */
#ifndef TIDE_BASE_H
#define TIDE_BASE_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "tide.h"

#define TRY(expr) do { tide_status try_ = (expr); if (try_) return try_; } while (0)
#define COUNT_OF(array) ((int)(sizeof(array) / sizeof((array)[0])))

static inline bool mul_size(int64_t a, int64_t b, int64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool add_size(int64_t a, int64_t b, int64_t *out) { return !__builtin_add_overflow(a, b, out); }

/* Bytes of an element, 0 for a number that is no dtype. */
static inline int64_t dtype_bytes(int32_t dtype) {
  switch (dtype) {
    case TIDE_F32: case TIDE_I32: case TIDE_U32: return 4;
    case TIDE_F16: case TIDE_BF16: return 2;
    case TIDE_I64: return 8;
    case TIDE_F8E4M3: case TIDE_U8: return 1;
    default: return 0;
  }
}

static inline const char *dtype_name(int32_t dtype) {
  static const char *const names[] = {"?", "f32", "f16", "bf16", "f8e4m3", "i32", "u32", "i64", "u8"};
  return names[dtype >= TIDE_F32 && dtype <= TIDE_U8 ? dtype : 0];
}

/* A failure's sentence goes to the context, or to a caller's buffer where there is none; both may be NULL. */
tide_status tide_fail(tide_ctx *ctx, tide_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
tide_status tide_fail_into(char *error, int64_t error_bytes, tide_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* A size for people: "3.88 GiB", "512 B". Returns out, which holds 24 bytes. */
char *bytes_text(int64_t bytes, char out[24]);

#endif
