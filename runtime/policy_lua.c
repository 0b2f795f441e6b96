/* policy_lua.c: a Lua script as a policy. The prelude (lua/tide/policy_prelude.lua) makes the sandbox and the
 * columns; here its four functions are kept, and one of them is called once a decision. */
#include <stdio.h>
#include <stdlib.h>
#include <lauxlib.h>
#include "lua_host.h"
#include "lua_index.h"
#include "policy.h"

static const double load_budget_us = 1e6;

typedef struct script {
  lua_host lua;
  policy_columns *columns;
  policy_columns *view;          /* what the prelude sees: a cdata that it made and that is kept by a reference */
  int kept_view, adopt, practise, decide, setting;     /* references in the registry */
  char name[64], how[256], description[320];
} script;

static const struct tide_lua_file *find_prelude(void) {
  for (int i = 0; i < tide_n_lua_files; i++)
    if (!strcmp(tide_lua_files[i].module, "tide.policy_prelude")) return &tide_lua_files[i];
  return NULL;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static int run_prelude(lua_State *L) {
  script *s = lua_touserdata(L, 1);
  const struct tide_lua_file *file = find_prelude();
  if (!file) return luaL_error(L, "this build lacks lua/tide/policy_prelude.lua");
  lua_pushfstring(L, "@%s", file->path);
  if (luaL_loadbufferx(L, file->data, (size_t)*file->size, lua_tostring(L, -1), "t")) return lua_error(L);
  lua_pushnumber(L, sizeof *s->view);
  lua_call(L, 1, 5);
  s->setting = luaL_ref(L, LUA_REGISTRYINDEX);
  s->decide = luaL_ref(L, LUA_REGISTRYINDEX);
  s->practise = luaL_ref(L, LUA_REGISTRYINDEX);
  s->adopt = luaL_ref(L, LUA_REGISTRYINDEX);
  s->view = (policy_columns *)lua_topointer(L, -1);
  s->kept_view = luaL_ref(L, LUA_REGISTRYINDEX);
  return 0;
}

typedef struct adoption {
  script *s;
  const policy_source *source;
  bool read, ran;                /* the text is Lua; it came to its end */
  char complaint[1024];
} adoption;

/* Compiles the text, as text only, and has the prelude run it and check what it returns. */
static int adopt_source(lua_State *L) {
  adoption *a = lua_touserdata(L, 1);
  if (*a->source->text == LUA_SIGNATURE[0])
    return luaL_error(L, "%s is bytecode (want the text of a script)", a->source->chunk);
  lua_pushfstring(L, "@%s", a->source->chunk);
  a->read = !luaL_loadbufferx(L, a->source->text, (size_t)a->source->bytes, lua_tostring(L, -1), "t");
  if (!a->read) return lua_error(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, a->s->adopt);
  lua_insert(L, -2);
  a->ran = lua_host_call(&a->s->lua, 1, 2, load_budget_us, a->complaint, sizeof a->complaint);
  if (!a->ran) return 0;
  const char *name = lua_tostring(L, -2), *wrong = lua_tostring(L, -1);
  if (name) snprintf(a->s->name, sizeof a->s->name, "%s", name);
  if (wrong) snprintf(a->complaint, sizeof a->complaint, "%s", wrong);
  return 0;
}

/* Practice decides nothing and its faults are no faults; what follows is the script run anew. */
static int practise(lua_State *L) {
  adoption *a = lua_touserdata(L, 1);
  *a->s->view = *a->s->columns;
  lua_rawgeti(L, LUA_REGISTRYINDEX, a->s->practise);
  a->ran = lua_host_call(&a->s->lua, 0, 2, load_budget_us, a->complaint, sizeof a->complaint);
  if (!a->ran) return 0;
  const char *how = lua_tostring(L, -2), *wrong = lua_tostring(L, -1);
  if (how) snprintf(a->s->how, sizeof a->s->how, "%s", how);
  if (wrong) snprintf(a->complaint, sizeof a->complaint, "%s", wrong);
  return 0;
}

static tide_status adopt(script *s, const policy_source *source, char *error, size_t error_bytes) {
  adoption a = {.s = s, .source = source};
  lua_CFunction steps[] = {adopt_source, practise};
  for (int i = 0; i < COUNT_OF(steps); i++) {
    bool done = lua_host_run(&s->lua, steps[i], &a, a.complaint, sizeof a.complaint);
    if (done && !*a.complaint) continue;
    snprintf(error, error_bytes, "%s", a.complaint);
    return a.read && !a.ran ? TIDE_ESCRIPT : TIDE_EFORMAT;
  }
  return TIDE_OK;
}

static void close_script(void *impl) {
  script *s = impl;
  lua_host_close(&s->lua);
  free(s);
}

static tide_status open_script(const policy_source *source, policy_columns *columns, void **out, char *error,
                               size_t error_bytes) {
  script *s = calloc(1, sizeof *s);
  if (!s) return TIDE_EMEM;
  s->columns = columns;
  tide_status status = lua_host_open(&s->lua, source->memory_bytes, error, error_bytes);
  if (!status && !lua_host_run(&s->lua, run_prelude, s, error, error_bytes)) status = TIDE_EUNSUPPORTED;
  if (!status && source->guarded) status = lua_guard_open(s->lua.L, &s->lua.guard, error, error_bytes);
  if (!status) status = adopt(s, source, error, error_bytes);
  if (status) close_script(s);
  else *out = s;
  return status;
}

/* ---- decisions and settings ------------------------------------------------------------------------------------- */

static bool decide(void *impl, double budget_us, char *fault, size_t fault_bytes) {
  script *s = impl;
  *s->view = *s->columns;
  lua_rawgeti(s->lua.L, LUA_REGISTRYINDEX, s->decide);
  bool good = lua_host_call(&s->lua, 0, 0, budget_us, fault, fault_bytes);
  s->columns->n_proposed = s->view->n_proposed;
  return good;
}

typedef struct adjustment {
  script *s;
  const char *setting;
  const double *value;
  double now;
  char complaint[256];
} adjustment;

static int adjust(lua_State *L) {
  adjustment *a = lua_touserdata(L, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, a->s->setting);
  lua_pushstring(L, a->setting);
  if (a->value) lua_pushnumber(L, *a->value);
  lua_call(L, a->value ? 2 : 1, 2);
  if (lua_isnil(L, -2)) snprintf(a->complaint, sizeof a->complaint, "%s", lua_tostring(L, -1));
  a->now = lua_tonumber(L, -2);
  return 0;
}

static tide_status setting(void *impl, const char *name, const double *value, double *out, char *error,
                           size_t error_bytes) {
  script *s = impl;
  adjustment a = {.s = s, .setting = name, .value = value};
  if (!lua_host_run(&s->lua, adjust, &a, a.complaint, sizeof a.complaint) || *a.complaint) {
    snprintf(error, error_bytes, "%s", a.complaint);
    return TIDE_EINVAL;
  }
  *out = a.now;
  return TIDE_OK;
}

static const char *own_name(void *impl) {
  script *s = impl;
  return *s->name ? s->name : NULL;
}

static const char *describe(void *impl) {
  script *s = impl;
  snprintf(s->description, sizeof s->description, "%s; holds %.2f of %.2f MiB", s->how,
           s->lua.used_bytes / 1048576.0, s->lua.limit_bytes / 1048576.0);
  return s->description;
}

const policy_host tide_lua_policy_host = {
  .open = open_script, .close = close_script, .decide = decide,
  .setting = setting, .name = own_name, .describe = describe,
};
