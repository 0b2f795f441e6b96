/* lua_host.c: states for scripts: the check of what Lua this is, the limit of memory, the door. */
#include <stdio.h>
#include <stdlib.h>
#include <lauxlib.h>
#include <lualib.h>
#include "lua_host.h"

static void *allocate(void *ud, void *block, size_t old_bytes, size_t new_bytes) {
  lua_host *h = ud;
  int64_t used = h->used_bytes - (int64_t)(block ? old_bytes : 0) + (int64_t)new_bytes;
  if (!new_bytes) {
    free(block);
    h->used_bytes = used;
    return NULL;
  }
  if (h->limited && used > h->limit_bytes && used > h->used_bytes) return NULL;
  void *moved = realloc(block, new_bytes);
  if (moved) h->used_bytes = used;
  return moved;
}

/* Runs where the error was raised, so it lifts the limit: the text must not fail for want of memory. */
static int add_traceback(lua_State *L) {
  void *h;
  lua_getallocf(L, &h);
  ((lua_host *)h)->limited = false;
  const char *message = lua_tostring(L, 1);
  if (!message) message = lua_pushfstring(L, "error object is a %s value", luaL_typename(L, 1));
  luaL_traceback(L, L, message, 1);
  return 1;
}

/* ---- what Lua is this ------------------------------------------------------------------------------------------- */

static void mark_seen(bool **seen) { **seen = true; }

/* Errors must unwind C frames, or whatever a frame holds is lost. */
static int raise_through_frame(lua_State *L) {
  __attribute__((cleanup(mark_seen))) bool *seen = lua_touserdata(L, 1);
  return luaL_error(L, "on purpose, %d", *seen);
}

static const char look_at_lua[] =
  "local ok, ffi = pcall(require, 'ffi')\n"
  "if type(jit) ~= 'table' then return 'it is ' .. _VERSION .. ' without a compiler' end\n"
  "if not ok then return 'it has no ffi library' end\n"
  "if ffi.abi('64bit') and not ffi.abi('gc64') then return 'it was built without GC64' end\n";

typedef struct inspection {
  lua_host *h;
  bool unwound;
  char complaint[128];
} inspection;

static int inspect(lua_State *L) {
  inspection *i = lua_touserdata(L, 1);
  luaL_openlibs(L);
  if (luaL_loadstring(L, look_at_lua)) return lua_error(L);
  lua_call(L, 0, 1);
  if (lua_isstring(L, -1)) snprintf(i->complaint, sizeof i->complaint, "%s", lua_tostring(L, -1));
  lua_cpcall(L, raise_through_frame, &i->unwound);
  if (!i->unwound && !*i->complaint) snprintf(i->complaint, sizeof i->complaint, "its errors do not unwind C frames");
  lua_pushcfunction(L, add_traceback);
  i->h->traceback = luaL_ref(L, LUA_REGISTRYINDEX);
  luaL_checkstack(L, 16, "the door");
  lua_gc(L, LUA_GCSETPAUSE, 110);      /* a limit is met by live data, not by garbage that waits */
  return 0;
}

tide_status lua_host_open(lua_host *h, int64_t limit_bytes, char *error, size_t error_bytes) {
  *h = (lua_host){.limit_bytes = limit_bytes, .traceback = LUA_NOREF};
  h->L = lua_newstate(allocate, h);
  if (!h->L) {
    snprintf(error, error_bytes, "no Lua state (out of memory, or of addresses below 2^47)");
    return TIDE_EMEM;
  }
  inspection i = {.h = h};
  if (lua_host_run(h, inspect, &i, i.complaint, sizeof i.complaint) && !*i.complaint) return TIDE_OK;
  snprintf(error, error_bytes, "the Lua of this process cannot run policies: %s (want LuaJIT 2.1; load libtide_lua "
           "so that it binds to its own, with RTLD_DEEPBIND)", i.complaint);
  lua_host_close(h);
  return TIDE_EUNSUPPORTED;
}

void lua_host_close(lua_host *h) {
  lua_guard_close(h->guard);
  h->guard = NULL;
  if (h->L) lua_close(h->L);
  h->L = NULL;
}

/* ---- the door --------------------------------------------------------------------------------------------------- */

static void take_error(lua_host *h, int code, char *error, size_t error_bytes) {
  bool text = lua_type(h->L, -1) == LUA_TSTRING;
  if (error && code == LUA_ERRMEM)
    snprintf(error, error_bytes, "not enough memory: the script may hold %.2f MiB", h->limit_bytes / 1048576.0);
  else if (error)
    snprintf(error, error_bytes, "%s", text ? lua_tostring(h->L, -1) : "error object is not a string");
  lua_pop(h->L, 1);
}

bool lua_host_run(lua_host *h, lua_CFunction f, void *ud, char *error, size_t error_bytes) {
  int code = lua_cpcall(h->L, f, ud);
  if (code) take_error(h, code, error, error_bytes);
  return code == 0;
}

static int collect(lua_State *L) { return lua_gc(L, LUA_GCCOLLECT, 0); }

bool lua_host_call(lua_host *h, int n_args, int n_results, double budget_us, char *error, size_t error_bytes) {
  lua_State *L = h->L;
  int at = lua_gettop(L) - n_args;
  lua_rawgeti(L, LUA_REGISTRYINDEX, h->traceback);
  lua_insert(L, at);
  h->limited = true;
  lua_guard_enter(h->guard, budget_us);
  int code = lua_pcall(L, n_args, n_results, at);
  lua_guard_leave(h->guard);
  h->limited = false;
  lua_remove(L, at);
  if (!code) return true;
  take_error(h, code, error, error_bytes);
  lua_host_run(h, collect, NULL, NULL, 0);
  return false;
}
