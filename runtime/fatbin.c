#include "fatbin.h"

// fatbins.def is written by the build: TIDE_EMBED(symbol, "name", "path") for each blob that embed.S includes.
#define TIDE_EMBED(symbol, name, path)                                                                           \
  extern const unsigned char symbol[];                                                                           \
  extern const unsigned long long symbol##_size;
#include "fatbins.def"
#undef TIDE_EMBED

const struct tide_fatbin tide_fatbins[] = {
#define TIDE_EMBED(symbol, name, path) {name, symbol, &symbol##_size},
#include "fatbins.def"
#undef TIDE_EMBED
  {0, 0, 0},
};

const int tide_n_fatbins = sizeof tide_fatbins / sizeof *tide_fatbins - 1;
