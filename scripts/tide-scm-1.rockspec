rockspec_format = "3.0"
package = "tide"
version = "scm-1"
source = {url = "git+file://."}
description = {
  summary = "The KV cache of language models, scripted in LuaJIT",
  detailed = "Block predictors, residency, sparse attention in C and CUDA. Needs LuaJIT, ninja, a C compiler.",
  license = "MIT",
}
dependencies = {"lua == 5.1", "lua-cjson", "argparse"}
build = {
  type = "command",
  build_command = "ninja",
  install_command = [[
    mkdir -p "$(LUADIR)" "$(LIBDIR)/tide" && cp -r lua/tide "$(LUADIR)/" &&
    cp build/lib/tide/core.so "$(LIBDIR)/tide/"
  ]],
}
