--- tide: the KV cache of language models, from Lua.
--
-- Every function here works in the default context, which the first use opens (cuda:0 where usable, else the
-- cpu). The same functions are methods of a context: `tide.buf{...}` and `ctx:buf{...}`. Ids count from 0.
-- @module tide

local context = require "tide.context"
local check = require "tide.check"

local tide = {}
local default

-- What exists, and which file has it: NAME = {module, function}, or {module} for a group of functions. Loaded
-- on first use; every function takes the context first.
local halves = {
  buf = {"tide.buf", "new"}, zeros = {"tide.buf", "zeros"},
  from = {"tide.buf", "from"}, wrap = {"tide.buf", "wrap"},
  from_dlpack = {"tide.buf", "from_dlpack"},
  predictor = {"tide.predictor", "open"}, measure = {"tide.predictor", "measure"},
  attend = {"tide.attend", "attend"}, gather = {"tide.attend", "gather"},
  calibrate = {"tide.calibrate", "calibrate"}, policy = {"tide.policy", "load"},
  mem = {"tide.mem", "lines"}, kernel = {"tide.kernel"},
  load = {"tide.safetensors", "load"}, save = {"tide.safetensors", "save"},
}

-- The function or group of that name, each function as with_ctx makes it.
local function bound(name, with_ctx)
  local half = halves[name]
  if not half then return nil end
  local module = require(half[1])
  if half[2] then return with_ctx(module[half[2]]) end
  local group = {}
  for key, f in pairs(module) do group[key] = with_ctx(f) end
  return group
end

local function unknown(name)
  local names = {"open", "use", "context", "devices", "device", "version"}
  for half in pairs(halves) do names[#names + 1] = half end
  table.sort(names)
  check.misuse("tide: no such function %s; %s", check.shown(name), check.suggest(name, names))
end

-- names: for completion at the prompt, which never calls an __index.
setmetatable(tide, {names = halves, __index = function(self, name)
  local f = bound(name, function(f)
    return function(...) return f(self.context(), ...) end
  end)
  if not f then unknown(name) end
  self[name] = f
  return f
end})

local function itself(f) return f end

-- No closure is made here: methods of a context are looked up in compiled loops.
context.class.__index = function(_, name)
  local method = context.methods[name]
  if method or name == "_handle" then return method end
  method = bound(name, itself)
  context.methods[name] = method
  return method
end

--- Opens a context and makes it the default one.
-- @tparam ?table settings device, threads, cpu_level, device_limit, host_limit
-- @treturn[1] context
-- @treturn[2] nil the device is absent or refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local ctx = assert(tide.open{device = "cpu", threads = 4})
function tide.open(settings)
  local ctx, message, code = context.open(settings)
  if not ctx then return nil, message, code end
  default = ctx
  return ctx
end

--- Makes an open context the default one.
-- @tparam context ctx
-- @treturn ?context the one before
-- @usage local before = tide.use(ctx)
function tide.use(ctx)
  if type(ctx) ~= "table" or getmetatable(ctx) ~= context.class then
    check.misuse("tide.use: wants a context (got %s)", check.shown(ctx))
  end
  local before = default
  default = ctx
  return before
end

--- The default context; opens it when there is none, or when it was closed.
-- @treturn context
-- @usage tide.context():close()
function tide.context()
  if default == nil or default:closed() then default = assert(context.open()) end
  return default
end

--- The devices of this machine, absent ones with the reason.
-- @function devices
-- @treturn {table,...} each name, model, usable, why_absent, processors, capability, total_bytes, free_bytes
-- @usage for _, d in ipairs(tide.devices()) do print(d.name, d.usable, d.why_absent) end
tide.devices = context.devices

--- The name of the default context's device.
-- @treturn string "cpu", "cuda:0"
-- @usage print(tide.device())
function tide.device() return tide.context().device end

--- The version of the C half.
-- @treturn string
-- @usage print(tide.version())
function tide.version()
  return require("ffi").string(require("tide.cdef").lib.tide_version())
end

return tide
