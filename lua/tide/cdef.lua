--- The C half, bound: `tide.h` is what `ffi.cdef` reads, so there is one list of names.
-- @module tide.cdef

local ffi = require "ffi"
local core = require "tide.core"

local cdef = {}

--- What `ffi.cdef` can read of a header: all but the lines of the preprocessor.
-- @tparam string name an embedded header, "tide.h" or "kernels/NAME.h"
-- @treturn string declarations
-- @usage print(require("tide.cdef").header "tide.h")
function cdef.header(name)
  local text = core.text(name) or error(("tide.cdef: %s is not embedded in this build"):format(name), 2)
  return (("\n" .. text):gsub("\n#[^\n]*", "\n"))
end

-- A second run (another Lua state has its own, a reloaded module has not) must not declare a struct twice.
local function declare(name, witness)
  if not pcall(ffi.typeof, witness) then ffi.cdef(cdef.header(name)) end
end

--- Declares the arguments of a kernel.
-- @tparam string name a kernel of kernels.def
-- @treturn ctype the struct tide_NAME_args
-- @usage local args = require("tide.cdef").kernel("gather")()
function cdef.kernel(name)
  local struct = "tide_" .. name .. "_args"
  declare("kernels/" .. name .. ".h", struct)
  return ffi.typeof(struct)
end

declare("tide.h", "tide_ctx")

-- The program exports the functions itself; in any other LuaJIT they are in the file of tide.core. An upvalue
-- of a function in package.loaded keeps the library for as long as anything of it may be called.
local lib = core.path and ffi.load(core.path) or ffi.C

local abi = lib.tide_abi()
if abi ~= lib.TIDE_ABI then
  error(("tide.cdef: the loaded library speaks ABI %d, this header ABI %d; load the two from one build")
    :format(abi, lib.TIDE_ABI))
end

--- The namespace of the C functions and constants.
cdef.lib = lib

return cdef
