#include "lua_index.h"

// lua.def is written by the build: TIDE_EMBED(symbol, "name", "path") for each file that embed.S includes.
#define TIDE_EMBED(symbol, name, path)                                                                           \
  extern const char symbol[];                                                                                    \
  extern const unsigned long long symbol##_size;
#include "lua.def"
#undef TIDE_EMBED

const struct tide_lua_file tide_lua_files[] = {
#define TIDE_EMBED(symbol, name, path) {name, path, symbol, &symbol##_size},
#include "lua.def"
#undef TIDE_EMBED
  {0, 0, 0, 0},
};

const int tide_n_lua_files = sizeof tide_lua_files / sizeof *tide_lua_files - 1;
