/* lua_host.h: a Lua state for code that is not trusted: checked to be a LuaJIT that works, limited in memory, entered
 * through one protected door. What the code may name is the business of whoever fills the state. */
#ifndef TIDE_LUA_HOST_H
#define TIDE_LUA_HOST_H
#include <lua.h>
#include "base.h"
#include "lua_guard.h"

typedef struct lua_host {
  lua_State *L;
  int64_t used_bytes, limit_bytes;
  bool limited;                  /* while foreign code runs; cleaning up after it may take what it needs */
  int traceback;                 /* reference in the registry */
  lua_guard *guard;              /* of time; NULL: none */
} lua_host;

/* A state with all standard libraries. Refuses, with one sentence in error, where the Lua of this process is no
 * LuaJIT that unwinds C frames and takes 64-bit addresses. The host stays where it is until it is closed. */
tide_status lua_host_open(lua_host *h, int64_t limit_bytes, char *error, size_t error_bytes);
void lua_host_close(lua_host *h);

/* Runs own code, f(ud), without a limit. False: error holds why. */
bool lua_host_run(lua_host *h, lua_CFunction f, void *ud, char *error, size_t error_bytes);
/* Calls the function that stands below n_args values on the stack, limited in memory, and in time where there is a
 * guard. The results are left there; on failure nothing is, and error (may be NULL) holds the message with its
 * traceback. Never raises. */
bool lua_host_call(lua_host *h, int n_args, int n_results, double budget_us, char *error, size_t error_bytes);

#endif
