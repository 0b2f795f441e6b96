/* policy.h: what a policy, in whatever language, is to the ranking in C. */
#ifndef TIDE_POLICY_H
#define TIDE_POLICY_H
#include "base.h"

/* One decision as the policy sees it. The arrays hold capacity entries and move only when capacity changes;
 * entries 0 .. n-1 count. lua/tide/policy_prelude.lua has the same struct. */
typedef struct policy_columns {
  int32_t n, capacity;
  int32_t n_wanted;
  int32_t n_proposed;            /* answer: slots in out; -1: the answer is keep */
  double now;
  uint64_t *key;
  double *born, *last_use;
  int32_t *slot, *index;
  float *score;
  float *keep;                   /* answer, zeros before the call: lowest leaves first */
  int32_t *out;                  /* answer: slots, first to leave first */
  uint8_t *chosen;               /* of the ranking alone */
} policy_columns;

typedef struct policy_source {
  const char *name;              /* of the policy */
  const char *chunk;             /* of the text, in front of line numbers */
  const char *text;
  int64_t bytes, memory_bytes;
  bool guarded;
} policy_source;

typedef struct policy_host {
  /* columns stay where they are for the life of the script, and hold a batch to practise on. */
  tide_status (*open)(const policy_source *source, policy_columns *columns, void **script, char *error,
                      size_t error_bytes);
  void (*close)(void *script);
  /* Answers in the columns, or false and the fault with its traceback. A guarded script is ended after budget_us. */
  bool (*decide)(void *script, double budget_us, char *fault, size_t fault_bytes);
  /* Sets, when value is not NULL; then reads. */
  tide_status (*setting)(void *script, const char *setting, const double *value, double *out, char *error,
                         size_t error_bytes);
  const char *(*name)(void *script);                                /* as the script calls itself, or NULL */
  const char *(*describe)(void *script);
} policy_host;

/* The Lua half, where it is in the process; the only tie, and a weak one. It uses nothing of the runtime but what
 * it is given here. */
#pragma GCC visibility push(default)
extern const policy_host tide_lua_policy_host;
#pragma GCC visibility pop

#endif
