/* lua_guard.c: the watchdog of a state. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <lauxlib.h>
#include <luajit.h>
#include "lua_guard.h"

enum { LOOK_NS = 5000000 };              /* how often the watchdog looks, and how late it may be */

struct lua_guard {
  lua_State *L;
  pthread_t watchdog;
  pthread_mutex_t lock;                  /* of what follows; the watchdog touches the state only while it holds it */
  pthread_cond_t closing;
  bool closed;
  double deadline_us;                    /* 0: nothing runs */
  atomic_bool expired;                   /* read within the state */
  bool interpreting;                     /* the callback has turned the compiler off */
};

static double time_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static const char message_key;           /* its address is the key of the message in the registry */

/* Thousands of nested pcalls each cost one of these, so nothing is formatted here. */
static void raise_again(lua_State *L, lua_Debug *ar) {
  (void)ar;
  lua_pushlightuserdata(L, (void *)&message_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_error(L);
}

static void on_tick(void *data, lua_State *L, int n_samples, int vm_state) {
  lua_guard *g = data;
  (void)n_samples, (void)vm_state;
  if (!g->expired || g->interpreting) return;
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_FLUSH);
  g->interpreting = true;
}

/* The hook is set at every look: the profiler's callback forgets one that comes while it runs. */
static void *watch(void *arg) {
  lua_guard *g = arg;
  pthread_mutex_lock(&g->lock);
  while (!g->closed) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_NS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&g->closing, &g->lock, &until);
    if (g->deadline_us == 0 || time_us() < g->deadline_us) continue;
    g->expired = true;
    lua_sethook(g->L, raise_again, LUA_MASKCOUNT, 1);
  }
  pthread_mutex_unlock(&g->lock);
  return NULL;
}

void lua_guard_enter(lua_guard *g, double budget_us) {
  if (!g) return;
  pthread_mutex_lock(&g->lock);
  g->deadline_us = time_us() + budget_us;
  pthread_mutex_unlock(&g->lock);
}

void lua_guard_leave(lua_guard *g) {
  if (!g) return;
  pthread_mutex_lock(&g->lock);
  g->deadline_us = 0;
  if (g->expired) {
    lua_sethook(g->L, NULL, 0, 0);
    luaJIT_setmode(g->L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_ON);
    g->expired = g->interpreting = false;
  }
  pthread_mutex_unlock(&g->lock);
}

static int start_profiler(lua_State *L) {
  lua_guard *g = lua_touserdata(L, 1);
  lua_pushlightuserdata(L, (void *)&message_key);
  lua_pushliteral(L, "stopped: it took more time than its budget");
  lua_rawset(L, LUA_REGISTRYINDEX);
  luaJIT_profile_start(L, "li5", on_tick, g);
  return 0;
}

/* A loop of some tenths of a second. */
static int run_away(lua_State *L) {
  if (luaL_loadstring(L, "for i = 1, 4e8 do end")) return lua_error(L);
  lua_call(L, 0, 0);
  return 0;
}

static bool ends_a_loop(lua_guard *g) {
  lua_guard_enter(g, 1);
  bool raised = lua_cpcall(g->L, run_away, NULL) != 0, ticked = g->interpreting;
  lua_guard_leave(g);
  lua_settop(g->L, 0);
  return raised && ticked;
}

static bool start_watchdog(lua_guard *g) {
  pthread_condattr_t monotonic;
  pthread_mutex_init(&g->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&g->closing, &monotonic);
  pthread_condattr_destroy(&monotonic);
  return pthread_create(&g->watchdog, NULL, watch, g) == 0;
}

tide_status lua_guard_open(lua_State *L, lua_guard **out, char *error, size_t error_bytes) {
  lua_guard *g = calloc(1, sizeof *g);
  if (!g) return TIDE_EMEM;
  g->L = L;
  if (!start_watchdog(g)) {
    snprintf(error, error_bytes, "guarded: no thread for the watchdog");
    free(g);
    return TIDE_EMEM;
  }
  if (!lua_cpcall(L, start_profiler, g) && ends_a_loop(g)) {
    *out = g;
    return TIDE_OK;
  }
  lua_guard_close(g);
  snprintf(error, error_bytes, "guarded: a loop could not be ended; one guarded policy a process (close the other, or "
           "load this one as trusted), and nobody else may use SIGPROF");
  return TIDE_EUNSUPPORTED;
}

void lua_guard_close(lua_guard *g) {
  if (!g) return;
  pthread_mutex_lock(&g->lock);
  g->closed = true;
  pthread_cond_signal(&g->closing);
  pthread_mutex_unlock(&g->lock);
  pthread_join(g->watchdog, NULL);
  luaJIT_profile_stop(g->L);
  pthread_cond_destroy(&g->closing);
  pthread_mutex_destroy(&g->lock);
  free(g);
}
