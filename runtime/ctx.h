/* ctx.h: the context's inside: its devices, its ledger, and the storages that die with it. */
#ifndef TIDE_CTX_H
#define TIDE_CTX_H
#include "base.h"
#include "dev.h"
#include "mem.h"

enum { CTX_MAX_DEVICES = 18 };

typedef struct storage storage;

struct tide_ctx {
  int32_t n_refs;                        /* the owner's, and one of every handle that still points here */
  bool closed;
  int32_t default_device;                /* what TIDE_DEVICE_DEFAULT means */
  dev *devices[CTX_MAX_DEVICES];         /* [0] is not used; [TIDE_DEVICE_HOST] is the host */
  int32_t n_devices;
  ledger ledger;
  storage *storages;                     /* a list, freed when the context closes */
  int32_t n_exports;                     /* tensors that somebody else still holds; the devices wait for them */
  struct tide_event *events;
  struct tide_graph *graphs;
  tide_ctx_settings settings;            /* device is NULL here: names live in the devices */
  char error[1024];
};

void ctx_retain(tide_ctx *ctx);
void ctx_release(tide_ctx *ctx);
/* Closes the devices of a closed context, once the last exported tensor has come back. */
void ctx_close_devices(tide_ctx *ctx);
/* The device behind an id, or a failure that names the range. Refuses on a closed context. */
tide_status ctx_device(tide_ctx *ctx, int32_t id, dev **out);

#endif
