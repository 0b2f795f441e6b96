/* mem.h: the ledger. Every byte that tide holds stands in a line: who, where, how much, and the setting that scales it. */
#ifndef TIDE_MEM_H
#define TIDE_MEM_H
#include "base.h"

typedef struct ledger {
  tide_mem_line *lines;
  int32_t n, capacity;
} ledger;

/* What may still be taken on a device: its own word, cut by the limit of its tier. */
tide_status mem_free(tide_ctx *ctx, int32_t device, int64_t *out);
/* Refuses before anything is allocated; else adds the bytes and gives the line for mem_release. */
tide_status mem_reserve(tide_ctx *ctx, int32_t device, int64_t bytes, const char *label, const char *setting, int32_t *line);
void mem_release(tide_ctx *ctx, int32_t line, int64_t bytes);

#endif
