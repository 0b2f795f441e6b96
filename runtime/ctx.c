/* ctx.c: opens and closes contexts, keeps the last failure. */
#include <stdio.h>
#include <stdlib.h>
#include "buf.h"

int32_t tide_abi(void) { return TIDE_ABI; }
const char *tide_version(void) { return "0.1.0"; }

const char *tide_status_name(tide_status s) {
  static const char *const names[] = {
#define TIDE_STATUS(name) [TIDE_##name] = #name,
#include "status.def"
#undef TIDE_STATUS
  };
  return s >= 0 && s < COUNT_OF(names) ? names[s] : "EUNKNOWN";
}

tide_status tide_fail(tide_ctx *ctx, tide_status status, const char *format, ...) {
  if (!ctx) return status;
  va_list args;
  va_start(args, format);
  vsnprintf(ctx->error, sizeof ctx->error, format, args);
  va_end(args);
  return status;
}

tide_status tide_fail_into(char *error, int64_t error_bytes, tide_status status, const char *format, ...) {
  if (!error || error_bytes <= 0) return status;
  va_list args;
  va_start(args, format);
  vsnprintf(error, (size_t)error_bytes, format, args);
  va_end(args);
  return status;
}

char *bytes_text(int64_t bytes, char out[24]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, unit++;
  snprintf(out, 24, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
  return out;
}

const char *tide_errmsg(const tide_ctx *ctx) { return ctx ? ctx->error : "no context"; }

void ctx_retain(tide_ctx *ctx) { ctx->n_refs++; }

void ctx_release(tide_ctx *ctx) {
  if (--ctx->n_refs > 0) return;
  free(ctx->ledger.lines);
  free(ctx);
}

tide_status ctx_device(tide_ctx *ctx, int32_t id, dev **out) {
  if (!ctx) return TIDE_EINVAL;
  if (ctx->closed) return tide_fail(ctx, TIDE_ESTATE, "context: closed");
  int32_t resolved = id == TIDE_DEVICE_DEFAULT ? ctx->default_device : id;
  if (resolved < 1 || resolved > ctx->n_devices)
    return tide_fail(ctx, TIDE_ERANGE, "device: no such device in this context (got %d, want 0..%d)", id, ctx->n_devices);
  *out = ctx->devices[resolved];
  return TIDE_OK;
}

tide_status tide_ctx_open(const tide_ctx_settings *settings, tide_ctx **out, char *error, int64_t error_bytes) {
  static const tide_ctx_settings defaults;
  if (!settings) settings = &defaults;
  if (!out) return tide_fail_into(error, error_bytes, TIDE_EINVAL, "context: out is required (got NULL)");
  if (settings->n_threads < 0 || settings->cpu_level < 0 || settings->cpu_level > TIDE_CPU_V4)
    return tide_fail_into(error, error_bytes, TIDE_EINVAL, "context: n_threads must be 0 or more and cpu_level 0..3 "
                          "(got %d and %d)", settings->n_threads, settings->cpu_level);
  tide_ctx *ctx = calloc(1, sizeof *ctx);
  if (!ctx) return tide_fail_into(error, error_bytes, TIDE_EMEM, "context: out of memory");
  ctx->n_refs = 1;
  ctx->settings = *settings;
  ctx->settings.device = NULL;
  int32_t device = TIDE_DEVICE_HOST;
  tide_status status = tide_device_open(ctx, "cpu", &device);
  if (!status && settings->device) status = tide_device_open(ctx, settings->device, &device);
  if (status) {
    tide_fail_into(error, error_bytes, status, "%s", ctx->error);
    tide_ctx_close(ctx);
    return status;
  }
  ctx->default_device = device;
  *out = ctx;
  return TIDE_OK;
}
