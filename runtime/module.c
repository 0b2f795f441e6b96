/* module.c: require "tide.core": the texts that the build embedded, and where LuaJIT's FFI finds the C functions.
 * Classic C functions only; everything else that Lua calls is in tide.h, through the FFI. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <lauxlib.h>
#include <lua.h>
#include "base.h"
#include "lua_index.h"

#define EXPORT __attribute__((visibility("default")))

/* core.text(name): an embedded file and its path, by module name: "tide.h", "tide.buf". nil when there is none. */
static int core_text(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  for (int i = 0; i < tide_n_lua_files; i++) {
    const struct tide_lua_file *file = &tide_lua_files[i];
    if (strcmp(file->module, name)) continue;
    lua_pushlstring(L, file->data, (size_t)*file->size);
    lua_pushstring(L, file->path);
    return 2;
  }
  return 0;
}

/* core.texts(): the names that core.text knows. */
static int core_texts(lua_State *L) {
  lua_createtable(L, tide_n_lua_files, 0);
  for (int i = 0; i < tide_n_lua_files; i++) {
    lua_pushstring(L, tide_lua_files[i].module);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* The file for ffi.load; NULL when the process itself exports these functions, so that ffi.C has them. The process is
 * asked by its own handle: RTLD_DEFAULT would look into this very file, too. */
static const char *library_path(void) {
  Dl_info info;
  void *process = dlopen(NULL, RTLD_LAZY);
  bool exported = process && dlsym(process, "tide_abi") == (void *)tide_abi;
  if (process) dlclose(process);
  if (exported) return NULL;
  return dladdr((void *)tide_abi, &info) ? info.dli_fname : NULL;
}

EXPORT int luaopen_tide_core(lua_State *L);
int luaopen_tide_core(lua_State *L) {
  static const luaL_Reg functions[] = {{"text", core_text}, {"texts", core_texts}, {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  const char *path = library_path();
  if (!path) return 1;
  lua_pushstring(L, path);
  lua_setfield(L, -2, "path");
  return 1;
}

/* ---- files as memory -------------------------------------------------------------------------------------------- */

/* A file in memory, shared by the buffers that lie over it; declared for the FFI in safetensors.lua. What is written there
 * stays there: pages are copied when first written to, and the file is left alone. Buffers
 * outlive whoever opened the file, so the count is kept here and not by Lua's collector. */
typedef struct tide_map {
  const uint8_t *data;
  int64_t bytes;
  int32_t n_refs;
} tide_map;

EXPORT tide_map *tide_map_open(const char *path, int32_t *out_errno);
EXPORT void tide_map_retain(tide_map *map);
EXPORT void tide_map_release(void *map);

static int map_file(int fd, tide_map *map) {
  struct stat st;
  if (fstat(fd, &st)) return errno;
  if (S_ISDIR(st.st_mode)) return EISDIR;
  if (!S_ISREG(st.st_mode)) return ESPIPE;
  map->bytes = st.st_size;
  if (!map->bytes) return 0;
  void *data = mmap(NULL, (size_t)map->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) return errno;
  map->data = data;
  return 0;
}

/* An empty file gives a map of no bytes. NULL: refused, *out_errno says why. */
tide_map *tide_map_open(const char *path, int32_t *out_errno) {
  tide_map *map = calloc(1, sizeof *map);
  int fd = map ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
  int error = map ? fd < 0 ? errno : map_file(fd, map) : ENOMEM;
  if (fd >= 0) close(fd);
  if (error) {
    free(map);
    *out_errno = error;
    return NULL;
  }
  map->n_refs = 1;
  return map;
}

void tide_map_retain(tide_map *map) { map->n_refs++; }

void tide_map_release(void *arg) {
  tide_map *map = arg;
  if (!map || --map->n_refs > 0) return;
  if (map->data) munmap((void *)(uintptr_t)map->data, (size_t)map->bytes);
  free(map);
}
