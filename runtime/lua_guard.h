/* lua_guard.h: ends Lua code that runs past its time, compiled or not, caught errors or not.
 *
 * Compiled code looks at no hook. So LuaJIT's profiler puts a check into each trace; once time is up its callback turns
 * the compiler off and throws the traces away, and a hook that a watchdog sets, again and again until the door has
 * closed, raises at every instruction. A library call is not ended: the sandbox offers none that takes long.
 * The profiler is one a process, and takes SIGPROF and ITIMER_PROF. */
#ifndef TIDE_LUA_GUARD_H
#define TIDE_LUA_GUARD_H
#include <lua.h>
#include "base.h"

typedef struct lua_guard lua_guard;

/* Refuses, with a sentence in error, where a loop that it runs for a test is not ended: another state has the
 * profiler. */
tide_status lua_guard_open(lua_State *L, lua_guard **out, char *error, size_t error_bytes);
void lua_guard_close(lua_guard *g);

/* Around code that the guard may end. NULL is no guard. */
void lua_guard_enter(lua_guard *g, double budget_us);
void lua_guard_leave(lua_guard *g);

#endif
