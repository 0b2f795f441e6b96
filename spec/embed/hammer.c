/* The story: LuaJIT takes a call through its FFI for a leaf, and a C function that comes back into the same state
 * crashes it, but only sometimes. A policy has a state of its own, so a decision may come at any moment, from a
 * signal too, and with any error inside. This program lets decisions come at random, with every kind of failure, and
 * counts. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include "tide.h"

enum { N_MAX = 6000, N_DECISIONS = 6000, N_LOADS = 1000 };

/* Every 7th decision fails, each time in another way; three in a row never do. */
static const char moody[] =
  "local n = 0\n"
  "local function deep(x) return 1 + deep(x) end\n"
  "return tide.policy.scorer {\n"
  "  score = function(c, now)\n"
  "    n = n + 1\n"
  "    for i = 0, c.n - 1 do c.keep[i] = (c.last_use[i] * 7919 + now) % 101 end\n"
  "    if n % 7 ~= 0 or c.n < 2 then return end\n"
  "    local mood = n / 7 % 6\n"
  "    if mood == 0 then error 'a string' elseif mood == 1 then error {} elseif mood == 2 then deep(1)\n"
  "    elseif mood == 3 then c.keep[c.n] = 1 elseif mood == 4 then c.keep[1] = 0 / 0\n"
  "    else local bomb = {} while true do bomb = {bomb, bomb} end end\n"
  "  end,\n"
  "}\n";

static tide_ctx *ctx;
static tide_policy *policy;
static volatile sig_atomic_t inside, n_interrupts, n_wrong;

static void check(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "hammer: %s: %s\n", what, tide_errmsg(ctx));
  exit(1);
}

/* Within a decision every further one is refused; nothing else may happen. */
static void interrupt(int signal) {
  (void)signal;
  if (!inside) return;
  int32_t victim = -7;
  tide_candidates one = {.n = 1};
  tide_status status = tide_policy_victims(policy, &one, 0, 1, &victim, NULL);
  n_interrupts++;
  if (status == TIDE_EREENTRY ? victim != -7 : status != TIDE_OK) n_wrong++;
}

static uint32_t next(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

static int decide(const tide_candidates *candidates, int32_t n_wanted, int32_t *victims) {
  tide_decision report;
  static char seen[N_MAX];
  inside = 1;
  tide_status status = tide_policy_victims(policy, candidates, candidates->n, n_wanted, victims, &report);
  inside = 0;
  check(!status && report.n_victims == n_wanted, "decision");
  memset(seen, 0, sizeof seen);
  for (int32_t j = 0; j < n_wanted; j++) {
    check(victims[j] >= 0 && victims[j] < candidates->n && !seen[victims[j]], "a victim that is none, or twice");
    seen[victims[j]] = 1;
  }
  return report.used_fallback;
}

static void decide_at_random(void) {
  static double last_use[N_MAX];
  static int32_t victims[N_MAX];
  uint32_t state = 7;
  int n_fallbacks = 0;
  struct itimerval often = {{0, 1700}, {0, 1700}}, never = {{0, 0}, {0, 0}};
  signal(SIGALRM, interrupt);
  check(!tide_policy_load(ctx, "moody", moody, sizeof moody - 1, &policy), "load");
  check(!tide_policy_budget(policy, 1e9), "budget");
  setitimer(ITIMER_REAL, &often, NULL);
  for (int i = 0; i < N_DECISIONS; i++) {
    int32_t n = (int32_t)(next(&state) >> 8) % (i % 100 ? 64 : N_MAX) + 1;
    for (int32_t j = 0; j < n; j++) last_use[j] = next(&state) >> 20;
    int32_t n_wanted = (int32_t)(next(&state) >> 8) % n + 1;
    n_fallbacks += decide(&(tide_candidates){.n = n, .last_use = last_use}, n_wanted, victims);
  }
  setitimer(ITIMER_REAL, &never, NULL);
  printf("%d decisions, %d by the fallback, %d interrupted; last fault: %.60s\n", N_DECISIONS, n_fallbacks,
         (int)n_interrupts, tide_policy_fault(policy));
  check(n_fallbacks > N_DECISIONS / 9 && n_fallbacks < N_DECISIONS / 6, "number of fallbacks");
  check(!strstr(tide_policy_fault(policy), "switched off"), "the policy was switched off");
  check(n_wrong == 0, "an interrupt got an answer that is none");
  tide_policy_close(policy);
}

static void load_again_and_again(void) {
  for (int i = 0; i < N_LOADS; i++) {
    int32_t victims[2];
    check(!tide_policy_load(ctx, "again", moody, sizeof moody - 1, &policy), "load");
    check(!tide_policy_victims(policy, &(tide_candidates){.n = 3}, 1, 2, victims, NULL), "decision");
    tide_policy_close(policy);
  }
  tide_mem_line lines[8];
  int32_t n;
  check(!tide_mem_lines(ctx, lines, 8, &n) && n > 0 && n <= 8, "ledger");
  for (int32_t i = 0; i < n; i++) check(lines[i].bytes == 0 && lines[i].peak_bytes > 0, "bytes left in the ledger");
}

int main(void) {
  check(!tide_ctx_open(NULL, &ctx, NULL, 0), "context");
  decide_at_random();
  load_again_and_again();
  tide_ctx_close(ctx);
  return 0;
}
