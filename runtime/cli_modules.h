/* cli_modules.h: the parts of the program `tide` that need C; each is a Lua module, preloaded by main.c. */
#ifndef TIDE_CLI_MODULES_H
#define TIDE_CLI_MODULES_H
#include <lua.h>

int luaopen_tide_core(lua_State *L);      /* module.c */
int luaopen_tide_edit(lua_State *L);      /* cli_edit.c: line editing, history, completion */
int luaopen_tide_interrupt(lua_State *L); /* cli_interrupt.c: Ctrl-C */

#endif
