/* cli_interrupt.c: module "tide.interrupt": Ctrl-C ends the code that runs, compiled loops too.
 *
 * A compiled loop looks at no hook. In the profiler's line mode the compiler puts a check into every trace; at a tick
 * after Ctrl-C the callback turns the engine off and drops the traces, and the interpreter then meets a hook that was set
 * by the signal and raises at every instruction until the outermost call has ended, whatever pcall it hides behind.
 *
 *   interrupt.call(f, ...)   like pcall with a traceback; the third result is true when Ctrl-C ended it
 */
#define _POSIX_C_SOURCE 200809L
#include <lauxlib.h>
#include <luajit.h>
#include <signal.h>
#include "cli_modules.h"

/* A signal and the profiler are one a process. */
static struct {
  lua_State *volatile L;
  volatile sig_atomic_t pressed;
} running;

static void stop(lua_State *L, lua_Debug *ar) {
  (void)ar;
  if (running.pressed) luaL_error(L, "interrupted");
}

static void on_signal(int signal_number) {
  (void)signal_number;
  running.pressed = 1;
  if (running.L) lua_sethook(running.L, stop, LUA_MASKCOUNT, 1);
}

static void on_tick(void *data, lua_State *L, int samples, int vm_state) {
  (void)data, (void)samples, (void)vm_state;
  if (!running.pressed) return;
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_FLUSH);
}

static int with_traceback(lua_State *L) {
  const char *message = lua_tostring(L, 1);
  if (!message) return 1;
  luaL_traceback(L, L, message, 1);
  return 1;
}

static int engine_is_on(lua_State *L) {
  lua_getglobal(L, "jit");
  lua_getfield(L, -1, "status");
  lua_call(L, 0, 1);
  int on = lua_toboolean(L, -1);
  lua_pop(L, 2);
  return on;
}

static int interrupt_call(lua_State *L) {
  int n = lua_gettop(L);
  int was_on = engine_is_on(L);
  lua_pushcfunction(L, with_traceback);
  lua_insert(L, 1);
  struct sigaction action = {.sa_handler = on_signal}, before;
  running.pressed = 0;
  running.L = L;
  luaJIT_profile_start(L, "li1", on_tick, NULL);
  sigaction(SIGINT, &action, &before);
  int failed = lua_pcall(L, n - 1, LUA_MULTRET, 1);
  running.L = NULL;
  lua_sethook(L, NULL, 0, 0);
  sigaction(SIGINT, &before, NULL);
  luaJIT_profile_stop(L);
  if (was_on) luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_ON);
  if (running.pressed && !failed) { /* a pcall swallowed it as its last act */
    lua_settop(L, 1);
    lua_pushliteral(L, "interrupted");
  }
  lua_pushboolean(L, !failed && !running.pressed);
  lua_replace(L, 1);
  if (failed || running.pressed) lua_pushboolean(L, running.pressed);
  return lua_gettop(L);
}

int luaopen_tide_interrupt(lua_State *L) {
  lua_newtable(L);
  lua_pushcfunction(L, interrupt_call);
  lua_setfield(L, -2, "call");
  return 1;
}
