/* dev_cuda.c: placeholder until the driver binding lands: the backend is absent and says so. */
#include <stdio.h>
#include "ctx.h"

static tide_status cuda_probe(int32_t ordinal, tide_device_info *out) {
  if (ordinal != 0) return TIDE_ERANGE;
  snprintf(out->name, sizeof out->name, "cuda");
  snprintf(out->why_absent, sizeof out->why_absent, "not in this build");
  return TIDE_OK;
}

static tide_status cuda_open(dev *d) { return tide_fail(d->ctx, TIDE_EDEVICE, "cuda: not in this build"); }

const dev_ops dev_cuda = {.kind = "cuda", .probe = cuda_probe, .open = cuda_open};
