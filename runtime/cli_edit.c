/* cli_edit.c: module "tide.edit": line editing by libedit, opened at run time under its readline names.
 *
 *   edit.open(complete)     true, or nil and why there is no editing. complete(line, from, to) answers a list of what
 *                           could stand in place of bytes from + 1 .. to of line
 *   edit.read(prompt)       a line; nil at the end of input; false when Ctrl-C dropped the line
 *   edit.remember(line)     into the history
 *   edit.load(path)  edit.save(path)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <lauxlib.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli_modules.h"

typedef char *generator(const char *text, int state);

/* readline's callbacks carry no pointer of ours, so the program has one of these. */
static struct {
  void *library;
  lua_State *L;
  int complete;                 /* registry reference of the Lua function */
  int candidates, n_given;      /* its last answer, and how many of them libedit has */
  sigjmp_buf drop_line;
  struct sigaction before;      /* what SIGINT did before the line was read */
  char *(*readline)(const char *prompt);
  void (*add_history)(const char *line);
  int (*read_history)(const char *path);
  int (*write_history)(const char *path);
  void (*stifle_history)(int n);
  char **(*completion_matches)(const char *text, generator *next);
  char **line_buffer;
  int *completion_over, *append_character;
} edit = {.complete = LUA_NOREF, .candidates = LUA_NOREF};

/* state is 0 on the first call of a list and 1 on the others. */
static char *next_candidate(const char *text, int state) {
  (void)text;
  lua_State *L = edit.L;
  edit.n_given = state ? edit.n_given + 1 : 1;
  lua_rawgeti(L, LUA_REGISTRYINDEX, edit.candidates);
  lua_rawgeti(L, -1, edit.n_given);
  const char *candidate = lua_tostring(L, -1);
  char *copy = candidate ? strdup(candidate) : NULL;
  lua_pop(L, 2);
  return copy;
}

static char **complete(const char *text, int from, int to) {
  lua_State *L = edit.L;
  *edit.completion_over = 1;
  *edit.append_character = 0;
  lua_rawgeti(L, LUA_REGISTRYINDEX, edit.complete);
  lua_pushstring(L, *edit.line_buffer);
  lua_pushinteger(L, from);
  lua_pushinteger(L, to);
  if (lua_pcall(L, 3, 1, 0) || !lua_istable(L, -1)) {
    lua_pop(L, 1);
    return NULL;
  }
  luaL_unref(L, LUA_REGISTRYINDEX, edit.candidates);
  edit.candidates = luaL_ref(L, LUA_REGISTRYINDEX);
  return edit.completion_matches(text, next_candidate);
}

static const char *open_library(void) {
  edit.library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!edit.library) return "libedit.so.2 is not installed (apt-get install libedit2)";
  struct { const char *name; void **to; } const names[] = {
    {"readline", (void **)&edit.readline},
    {"add_history", (void **)&edit.add_history},
    {"read_history", (void **)&edit.read_history},
    {"write_history", (void **)&edit.write_history},
    {"stifle_history", (void **)&edit.stifle_history},
    {"rl_completion_matches", (void **)&edit.completion_matches},
    {"rl_line_buffer", (void **)&edit.line_buffer},
    {"rl_attempted_completion_over", (void **)&edit.completion_over},
    {"rl_completion_append_character", (void **)&edit.append_character},
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    *names[i].to = dlsym(edit.library, names[i].name);
    if (!*names[i].to) return "libedit.so.2 lacks the names of readline";
  }
  const char **breaks = dlsym(edit.library, "rl_completer_word_break_characters");
  char **(**attempted)(const char *, int, int) = dlsym(edit.library, "rl_attempted_completion_function");
  const char **program = dlsym(edit.library, "rl_readline_name");
  void (*using_history)(void) = (void (*)(void))dlsym(edit.library, "using_history");
  if (!breaks || !attempted || !program || !using_history) return "libedit.so.2 lacks the names of readline";
  *program = "tide";
  using_history();
  edit.stifle_history(1000);
  *breaks = " \t\n\"'`@$><=;|&{(+-*/%^#~,[])}";
  *attempted = complete;
  return NULL;
}

static int edit_open(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  const char *why = open_library();
  if (why) {
    lua_pushnil(L);
    lua_pushstring(L, why);
    return 2;
  }
  lua_settop(L, 1);
  edit.L = L;
  edit.complete = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_pushboolean(L, 1);
  return 1;
}

static void drop_line(int signal_number) {
  (void)signal_number;
  siglongjmp(edit.drop_line, 1);
}

/* The jump leaves only libedit's wait for a key. */
static int edit_read(lua_State *L) {
  const char *prompt = luaL_checkstring(L, 1);
  struct sigaction drop = {.sa_handler = drop_line};
  edit.L = L;
  sigaction(SIGINT, NULL, &edit.before);
  if (sigsetjmp(edit.drop_line, 1)) {
    sigaction(SIGINT, &edit.before, NULL);
    puts("^C");
    lua_pushboolean(L, 0);
    return 1;
  }
  sigaction(SIGINT, &drop, NULL);
  char *line = edit.readline(prompt);
  sigaction(SIGINT, &edit.before, NULL);
  if (!line) return 0;
  lua_pushstring(L, line);
  free(line);
  return 1;
}

static int edit_remember(lua_State *L) {
  edit.add_history(luaL_checkstring(L, 1));
  return 0;
}

static int edit_load(lua_State *L) {
  lua_pushboolean(L, !edit.read_history(luaL_checkstring(L, 1)));
  return 1;
}

static int edit_save(lua_State *L) {
  lua_pushboolean(L, !edit.write_history(luaL_checkstring(L, 1)));
  return 1;
}

int luaopen_tide_edit(lua_State *L) {
  static const luaL_Reg functions[] = {
    {"open", edit_open}, {"read", edit_read}, {"remember", edit_remember},
    {"load", edit_load}, {"save", edit_save}, {NULL, NULL},
  };
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
