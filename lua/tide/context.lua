--- A context: a device, its memory ledger, and everything made on it.
-- @module tide.context

local ffi = require "ffi"
local lib = require("tide.cdef").lib
local check = require "tide.check"
local schema = require "tide.schema"

local context = {}
local methods = {}

-- LuaJIT needs room for machine code near itself: one trace takes it before a driver takes the address space.
for _ = 1, 200 do ffi.sizeof("tide_view") end

local settings = schema.new("tide.open", {
  device = {"string", c = "device", doc = '"cpu", "cuda:0", "null"; default: cuda:0 where usable, else cpu'},
  threads = {"integer", min = 1, max = 4096, c = "n_threads", doc = "of the cpu device; default: all cores"},
  cpu_level = {"choice", among = {"best", "plain", "v3", "v4"}, default = "best",
    doc = "best instruction set to use"},
  device_limit = {"bytes", c = "device_limit_bytes",
    doc = "most that the device may hold; default: what is free"},
  host_limit = {"bytes", c = "host_limit_bytes", doc = "most that the host may hold; default: what is free"},
})

context.settings = settings
local cpu_levels = {best = lib.TIDE_CPU_BEST, plain = lib.TIDE_CPU_PLAIN, v3 = lib.TIDE_CPU_V3,
  v4 = lib.TIDE_CPU_V4}

local function info_table(info)
  local why = ffi.string(info.why_absent)
  return {
    name = ffi.string(info.name), model = ffi.string(info.model),
    usable = why == "", why_absent = why ~= "" and why or nil,
    processors = info.n_processors, capability = info.capability,
    total_bytes = tonumber(info.total_bytes), free_bytes = tonumber(info.free_bytes),
  }
end

--- Every device that this machine could offer, absent ones with the reason.
-- @treturn {table,...} each name, model, usable, why_absent, processors, capability, total_bytes, free_bytes
-- @usage for _, d in ipairs(tide.devices()) do print(d.name, d.usable, d.why_absent) end
function context.devices()
  local list, info = {}, ffi.new "tide_device_info"
  while lib.tide_device_probe(#list, info) == 0 do list[#list + 1] = info_table(info) end
  return list
end

local function best_device()
  for _, device in ipairs(context.devices()) do
    if device.usable and device.name:find("^cuda") then return device.name end
  end
  return "cpu"
end

--- Opens a context.
-- @tparam ?table given device, threads, cpu_level, device_limit, host_limit
-- @treturn[1] context
-- @treturn[2] nil the device is absent or refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local ctx = assert(tide.open{device = "cuda:0", device_limit = "2 GiB"})
function context.open(given)
  local values = settings:read(given)
  values.device = values.device or best_device()
  local struct, out, message = ffi.new "tide_ctx_settings", ffi.new "tide_ctx *[1]", ffi.new "char[1024]"
  settings:fill(struct, values)
  struct.cpu_level = cpu_levels[values.cpu_level]
  local status = lib.tide_ctx_open(struct, out, message, 1024)
  local ok, text, code = check.outcome(status, ffi.string(message))
  if not ok then return nil, text, code end
  local handle = ffi.gc(out[0], lib.tide_ctx_close)
  local ctx = setmetatable({_handle = handle, _ids = {}, _names = {}}, context.class)
  ctx:device_id "cpu"
  ctx:device_id(values.device)
  ctx.device = ctx._names[ctx._ids[values.device]]
  return ctx
end

--- The id of a device in this context; opens it when it is not open yet.
-- @tparam ?string name "cpu", "cuda:1"; nil is the context's own
-- @treturn[1] number id
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local id = assert(ctx:device_id "cuda:1")
function methods:device_id(name)
  if name == nil then return lib.TIDE_DEVICE_DEFAULT end
  local known = self._ids[name]
  if known then return known end
  check.name("device", name)
  local out, info = ffi.new "int32_t[1]", ffi.new "tide_device_info"
  local ok, message, code = check.status(self, lib.tide_device_open(self:handle(), name, out))
  if not ok then return nil, message, code end
  ok, message, code = check.status(self, lib.tide_device_describe(self:handle(), out[0], info))
  if not ok then return nil, message, code end
  self._ids[name], self._names[out[0]] = out[0], ffi.string(info.name)
  return out[0]
end

--- The C handle; raises when the context is closed.
-- @treturn cdata tide_ctx *
-- @usage lib.tide_sync(ctx:handle(), 0, nil)
function methods:handle()
  return self._handle or check.misuse("context: closed")
end

--- Waits for everything enqueued on the context's own stream.
-- @tparam ?string device default: the context's own
-- @treturn[1] boolean true
-- @treturn[2] nil the device failed
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage assert(ctx:sync())
function methods:sync(device)
  local id, message, code = self:device_id(device)
  if not id then return nil, message, code end
  return check.status(self, lib.tide_sync(self:handle(), id, nil))
end

--- Whether close was called.
-- @treturn boolean
-- @usage assert(not ctx:closed())
function methods:closed() return self._handle == nil end

--- Closes the context: frees the memory of all that was made on it. Again is fine.
-- @usage ctx:close()
function methods:close()
  if not self._handle then return end
  lib.tide_ctx_close(ffi.gc(self._handle, nil))
  self._handle = nil
end

context.methods = methods
context.class = {
  __index = methods,
  __tostring = function(ctx) return ctx._handle and "context " .. ctx.device or "context (closed)" end,
}

return context
