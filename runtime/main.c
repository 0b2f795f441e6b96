/* main.c: the program `tide`: a LuaJIT state with the embedded modules, which runs lua/tide/cli.lua. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <lauxlib.h>
#include <luajit.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli_modules.h"
#include "lua_index.h"

/* A driver reserves wide address ranges; the first trace has to find its machine code area before that. A VM that
 * cannot compile retries for ever at the price of every loop, so the compiler is then switched off. */
static const char compile_one_trace[] =
  "local n = 0\n"
  "local function count(what) if what == 'stop' then n = n + 1 end end\n"
  "jit.attach(count, 'trace')\n"
  "local sum = 0\n"
  "for i = 1, 1000 do sum = sum + i end\n"
  "jit.attach(count)\n"
  "if n == 0 then jit.off() end\n"
  "return n > 0";

static const struct tide_lua_file *find_file(const char *module) {
  for (int i = 0; i < tide_n_lua_files; i++) {
    if (!strcmp(tide_lua_files[i].module, module)) return &tide_lua_files[i];
  }
  return NULL;
}

static int search_embedded(lua_State *L) {
  const char *module = luaL_checkstring(L, 1);
  const struct tide_lua_file *file = find_file(module);
  if (!file) {
    lua_pushfstring(L, "\n\tno embedded file '%s'", module);
    return 1;
  }
  lua_pushfstring(L, "@%s", file->path);
  if (luaL_loadbuffer(L, file->data, (size_t)*file->size, lua_tostring(L, -1))) return lua_error(L);
  return 1;
}

/* Embedded modules come first, unless LUA_PATH asks for files: then the place after the loader of files. */
static void add_searcher(lua_State *L) {
  const char *path = getenv("LUA_PATH");
  int place = path && *path ? 3 : 2;
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaders");
  for (int i = (int)lua_objlen(L, -1); i >= place; i--) {
    lua_rawgeti(L, -1, i);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushcfunction(L, search_embedded);
  lua_rawseti(L, -2, place);
  lua_pop(L, 2);
}

static int is_terminal(lua_State *L) {
  lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
  return 1;
}

/* What cli.lua gets besides the arguments. */
static void push_host(lua_State *L, int trace_compiled) {
  lua_newtable(L);
  lua_pushboolean(L, trace_compiled);
  lua_setfield(L, -2, "trace_compiled");
  lua_pushstring(L, LUAJIT_VERSION);
  lua_setfield(L, -2, "luajit");
  lua_pushcfunction(L, is_terminal);
  lua_setfield(L, -2, "is_terminal");
}

static int traceback(lua_State *L) {
  if (!lua_isstring(L, 1) && !luaL_callmeta(L, 1, "__tostring")) {
    lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
  }
  luaL_traceback(L, L, lua_tostring(L, -1), 1);
  return 1;
}

/* Runs in protected mode: argc and argv on the stack, the exit code as result. */
static int run(lua_State *L) {
  char **argv = lua_touserdata(L, 2);
  luaL_openlibs(L);
  if (luaL_dostring(L, compile_one_trace)) return lua_error(L);
  int trace_compiled = lua_toboolean(L, -1);
  add_searcher(L);
  luaL_findtable(L, LUA_REGISTRYINDEX, "_PRELOAD", 3);
  lua_pushcfunction(L, luaopen_tide_core);
  lua_setfield(L, -2, "tide.core");
  lua_pushcfunction(L, luaopen_tide_edit);
  lua_setfield(L, -2, "tide.edit");
  lua_pushcfunction(L, luaopen_tide_interrupt);
  lua_setfield(L, -2, "tide.interrupt");
  lua_getglobal(L, "require");
  lua_pushliteral(L, "tide.cli");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "main");
  lua_newtable(L);
  for (int i = 0; i < lua_tointeger(L, 1); i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i);
  }
  push_host(L, trace_compiled);
  lua_call(L, 2, 1);
  return 1;
}

/* A full disk or a reader that has left: print says nothing, so the exit code has to. */
static int stdout_took_all(void) {
  int lost = ferror(stdout);
  if (!fflush(stdout) && !lost) return 1;
  fprintf(stderr, "tide: cannot write to stdout: %s\n", strerror(errno));
  return 0;
}

int main(int argc, char **argv) {
  lua_State *L = luaL_newstate();
  if (!L) {
    fprintf(stderr, "tide: no memory for a Lua state\n");
    return 1;
  }
  lua_pushcfunction(L, traceback);
  lua_pushcfunction(L, run);
  lua_pushinteger(L, argc);
  lua_pushlightuserdata(L, argv);
  int code = 1;
  if (lua_pcall(L, 2, 1, 1)) fprintf(stderr, "tide: %s\n", lua_tostring(L, -1));
  else code = (int)lua_tointeger(L, -1);
  lua_close(L);
  return stdout_took_all() || code ? code : 1;
}
