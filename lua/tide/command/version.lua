--- tide version
local version = {summary = "versions of tide, its ABI and LuaJIT", example = "  tide version --json"}

function version.options() end

function version.run(options)
  local ffi = require "ffi"
  local lib = require("tide.cdef").lib
  local found = {
    tide = ffi.string(lib.tide_version()), abi = lib.tide_abi(), luajit = require("tide.cli").host.luajit,
  }
  if options.json then return print(require("tide.json").encode(found)) end
  print(("tide %s (ABI %d, %s)"):format(found.tide, found.abi, found.luajit))
end

return version
