// The Lua modules that the build embedded as text, and tide.h as module "tide.h". Sorted by path.
#ifndef TIDE_LUA_INDEX_H
#define TIDE_LUA_INDEX_H

struct tide_lua_file {
  const char *module; // what require asks for: "tide" for lua/tide/init.lua, "tide.safetensors"
  const char *path;   // "lua/tide/safetensors.lua", for chunk names
  const char *data;   // followed by a zero byte that size does not count
  const unsigned long long *size;
};

extern const struct tide_lua_file tide_lua_files[]; // one more entry than counted, all zero
extern const int tide_n_lua_files;

#endif
