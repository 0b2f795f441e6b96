--- tide doctor: what works here, what does not, and why. One check a function; each answers state, text.
local ffi = require "ffi"
local lib = require("tide.cdef").lib
local context = require "tide.context"

local doctor = {
  summary = "what works here, what does not, and why",
  example = "  tide doctor\n  tide doctor --json",
}

local function loads(name) return pcall(ffi.load, name) end

local checks = {}

local function check(name, run) checks[#checks + 1] = {name = name, run = run} end

check("luajit", function(host)
  local width = ffi.abi "gc64" and "64-bit heap" or "no GC64: the heap ends at 2 GiB"
  return "ok", ("%s, %s"):format(host.luajit, width)
end)

check("jit", function(host)
  if host.trace_compiled and jit.status() then return "ok", "a trace was compiled at start" end
  return "slow", "no trace could be compiled, so the compiler is off: loops over buffers are 50 times slower "
    .. "(something holds the addresses near the program)"
end)

check("unwind", function()
  local ok, message = pcall(require, 0 / 0)
  return "ok", not ok and message and "errors cross C frames" or "?"
end)

check("ids", function()
  local high = 2 ^ 53 - 1
  if tonumber(ffi.new("int64_t", high)) == high then return "ok", "ids to 2^53 - 1 are exact" end
  return "bad", "64-bit integers lose digits"
end)

check("core", function()
  local built = tonumber(lib.TIDE_ABI)
  local loaded = lib.tide_abi()
  if loaded ~= built then return "bad", ("ABI %d, these modules want %d"):format(loaded, built) end
  return "ok", ("tide %s, ABI %d"):format(ffi.string(lib.tide_version()), built)
end)

local function opens(name)
  local ctx, message = context.open {device = name}
  if not ctx then return "bad", message end
  ctx:close()
  return "ok"
end

local line = require("tide.command.devices").line

local function check_devices(found)
  for _, device in ipairs(context.devices()) do
    local state, text = "absent", line(device)
    if device.usable then
      local why
      state, why = opens(device.name)
      if why then text = text .. ": " .. why end
      if why and device.name ~= "cpu" then state = "failed" end
    end
    found[#found + 1] = {name = "device", state = state, text = (text:gsub("%s+", " "))}
  end
end

local function variants_of(kernel)
  local names = {}
  local variant = lib.tide_kernel_variant(kernel, 0)
  while variant ~= nil do
    names[#names + 1] = ffi.string(variant)
    variant = lib.tide_kernel_variant(kernel, #names)
  end
  return table.concat(names, " ")
end

check("kernels", function()
  local lines = {}
  local name = lib.tide_kernel_name(0)
  while name ~= nil do
    lines[#lines + 1] = ("%s (%s)"):format(ffi.string(name), variants_of(name))
    name = lib.tide_kernel_name(#lines)
  end
  return #lines > 0 and "ok" or "bad", table.concat(lines, ", ")
end)

local function optional(name, library, lost, package)
  check(name, function()
    if loads(library) then return "ok", library end
    return "absent", ("%s not found, so %s (%s)"):format(library, lost, package)
  end)
end

optional("libedit", "libedit.so.2", "the prompt reads plain lines", "apt-get install libedit2")
optional("libcuda", "libcuda.so.1", "there is no cuda device", "comes with NVIDIA's driver")
optional("libcublas", "libcublas.so.13", "nothing uses cuBLAS", "comes with the CUDA toolkit")

local function lua_library(name, package)
  check(name, function()
    if pcall(require, name) then return "ok", "found" end
    return "bad", ("module %s not found (apt-get install %s)"):format(name, package)
  end)
end

lua_library("cjson", "lua-cjson")
lua_library("argparse", "lua-argparse")

--- Runs every check.
-- @treturn {table,...} name, state ("ok", "absent", "slow", "failed", "bad"), text
function doctor.examine()
  local host = require("tide.cli").host
  local found = {}
  for _, item in ipairs(checks) do
    local ran, state, text = pcall(item.run, host)
    if not ran then state, text = "bad", state end
    found[#found + 1] = {name = item.name, state = state, text = text}
    if item.name == "core" then check_devices(found) end
  end
  return found
end

function doctor.options() end

-- Exit code 0 while the cpu path works: what is absent, slow or failed costs a feature, what is bad all.
function doctor.run(options)
  local found = doctor.examine()
  local code = 0
  for _, item in ipairs(found) do
    if item.state == "bad" then code = 1 end
    if not options.json then print(("%-6s  %-9s  %s"):format(item.state, item.name, item.text)) end
  end
  if options.json then print(require("tide.json").encode {checks = found, works = code == 0}) end
  return code
end

return doctor
