/* mem.c: the ledger and its refusals. */
#include <stdio.h>
#include <stdlib.h>
#include "ctx.h"

static int64_t held_on(const tide_ctx *ctx, int32_t device) {
  int64_t held = 0;
  for (int32_t i = 0; i < ctx->ledger.n; i++)
    if (ctx->ledger.lines[i].device == device) held += ctx->ledger.lines[i].bytes;
  return held;
}

static int64_t limit_of(const tide_ctx *ctx, int32_t device) {
  if (device == ctx->default_device && ctx->settings.device_limit_bytes) return ctx->settings.device_limit_bytes;
  if (device == TIDE_DEVICE_HOST) return ctx->settings.host_limit_bytes;
  return 0;
}

tide_status mem_free(tide_ctx *ctx, int32_t device, int64_t *out) {
  tide_device_info info = {0};
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  TRY(d->ops->describe(d, &info));
  int64_t limit = limit_of(ctx, d->id), left = limit - held_on(ctx, d->id);
  *out = limit && left < info.free_bytes ? left : info.free_bytes;
  return TIDE_OK;
}

static int by_bytes(const void *a, const void *b) {
  const tide_mem_line *x = a, *y = b;
  return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* "; or lower blocks of predictor 'main' (0.40 GiB)": the three largest holders on the device. */
static void list_holders(tide_ctx *ctx, int32_t device, char *text, size_t text_bytes) {
  size_t at = 0;
  text[0] = 0;
  for (int rank = 0; rank < 3; rank++) {
    const tide_mem_line *best = NULL;
    for (int32_t i = 0; i < ctx->ledger.n; i++) {
      const tide_mem_line *line = &ctx->ledger.lines[i];
      int ahead = 0;
      if (line->device != device || line->bytes <= 0) continue;
      for (int32_t j = 0; j < ctx->ledger.n; j++) {
        const tide_mem_line *other = &ctx->ledger.lines[j];
        if (other->device == device) ahead += other->bytes > line->bytes || (other->bytes == line->bytes && j < i);
      }
      if (ahead == rank) best = line;
    }
    if (!best || at + 1 >= text_bytes) return;
    char size[24];
    at += (size_t)snprintf(text + at, text_bytes - at, "%s %s of %s (yields up to %s)", rank ? "," : ", or", best->setting,
                           best->label, bytes_text(best->bytes, size));
  }
}

static tide_status check_room(tide_ctx *ctx, dev *d, int64_t bytes, const char *label, const char *setting) {
  if (bytes == 0) return TIDE_OK;
  int64_t room;
  TRY(mem_free(ctx, d->id, &room));
  if (bytes <= room) return TIDE_OK;
  char need[24], have[24], name[32], holders[512];
  list_holders(ctx, d->id, holders, sizeof holders);
  return tide_fail(ctx, TIDE_EMEM, "%s: %s needs %s, %s free; lower %s%s", label, dev_name(d, name), bytes_text(bytes, need),
                   bytes_text(room > 0 ? room : 0, have), setting, holders);
}

tide_status tide_mem_check(tide_ctx *ctx, int32_t device, int64_t bytes, const char *label, const char *setting) {
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  return check_room(ctx, d, bytes, label ? label : "buffer", setting ? setting : "shape");
}

/* The line of this holder, a new one when it has none. -1: out of memory. */
static int32_t find_line(ledger *l, int32_t device, int32_t tier, const char *label, const char *setting) {
  tide_mem_line key = {.device = device, .tier = tier};
  snprintf(key.label, sizeof key.label, "%s", label);
  snprintf(key.setting, sizeof key.setting, "%s", setting);
  for (int32_t i = 0; i < l->n; i++) {
    const tide_mem_line *line = &l->lines[i];
    if (line->device == device && !strcmp(line->label, key.label) && !strcmp(line->setting, key.setting)) return i;
  }
  if (l->n == l->capacity) {
    int32_t capacity = l->capacity ? 2 * l->capacity : 16;
    tide_mem_line *lines = realloc(l->lines, (size_t)capacity * sizeof *lines);
    if (!lines) return -1;
    l->lines = lines;
    l->capacity = capacity;
  }
  l->lines[l->n] = key;
  return l->n++;
}

tide_status mem_reserve(tide_ctx *ctx, int32_t device, int64_t bytes, const char *label, const char *setting, int32_t *out) {
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  TRY(check_room(ctx, d, bytes, label, setting));
  int32_t tier = d->id == TIDE_DEVICE_HOST && d->id != ctx->default_device ? TIDE_TIER_HOST : TIDE_TIER_DEVICE;
  int32_t at = find_line(&ctx->ledger, d->id, tier, label, setting);
  if (at < 0) return tide_fail(ctx, TIDE_EMEM, "ledger: out of memory");
  tide_mem_line *line = &ctx->ledger.lines[at];
  line->bytes += bytes;
  if (line->bytes > line->peak_bytes) line->peak_bytes = line->bytes;
  *out = at;
  return TIDE_OK;
}

void mem_release(tide_ctx *ctx, int32_t line, int64_t bytes) { ctx->ledger.lines[line].bytes -= bytes; }

tide_status tide_mem_lines(tide_ctx *ctx, tide_mem_line *out, int32_t capacity, int32_t *n) {
  if (!ctx || !n || (capacity > 0 && !out)) return tide_fail(ctx, TIDE_EINVAL, "ledger: out and n are required");
  size_t bytes = (size_t)ctx->ledger.n * sizeof *out;
  tide_mem_line *sorted = malloc(bytes ? bytes : 1);
  if (!sorted) return tide_fail(ctx, TIDE_EMEM, "ledger: out of memory");
  if (bytes) memcpy(sorted, ctx->ledger.lines, bytes);
  qsort(sorted, (size_t)ctx->ledger.n, sizeof *sorted, by_bytes);
  for (int32_t i = 0; i < ctx->ledger.n && i < capacity; i++) out[i] = sorted[i];
  *n = ctx->ledger.n;
  free(sorted);
  return TIDE_OK;
}
