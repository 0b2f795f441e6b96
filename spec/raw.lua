--- C's own structs, for specs that need a field which the module has no word for, or a refusal word by word.
local ffi = require "ffi"
local tide = require "tide"
local cdef = require "tide.cdef"
local class = require("tide.predictor").class
local lib = cdef.lib

local raw = {lib = lib}

--- Makes the default context the one of these specs: on raw.device, else on the cpu; there with one thread
-- unless a spec has work for all (0), since most work is small and the machine is shared.
function raw.open(threads)
  threads = threads or 1
  return assert(tide.open{device = raw.device or "cpu", threads = threads > 0 and threads or nil})
end

--- A buffer where the host can read it: itself on the cpu.
function raw.host(b) return b.device == "cpu" and b or assert(b:to "cpu") end

--- The status' name and the sentence of the context.
function raw.outcome(status)
  if status == 0 then return true end
  return nil, ffi.string(lib.tide_errmsg(tide.context():handle())), ffi.string(lib.tide_status_name(status))
end

--- A predictor by the fields of tide_predictor_settings; the module's methods serve it.
-- @treturn[2] nil, message, name of the status
function raw.predictor(fields, ctx)
  ctx = ctx or tide.context()
  local settings = ffi.new("tide_predictor_settings", fields)
  local out = ffi.new "tide_predictor *[1]"
  local status = lib.tide_predictor_open(ctx:handle(), settings, out)
  if status ~= 0 then
    return nil, ffi.string(lib.tide_errmsg(ctx:handle())), ffi.string(lib.tide_status_name(status))
  end
  local identity = settings.projection == lib.TIDE_PROJECTION_IDENTITY
  local rank = settings.rank ~= 0 and settings.rank or identity and settings.head_dim or 32
  return setmetatable({
    ctx = ctx, device = ctx.device, _handle = ffi.gc(out[0], lib.tide_predictor_close),
    settings = {blocks = settings.n_blocks, q_heads = settings.n_q_heads}, _sizes = {rank = rank},
    _request = ffi.new "tide_score_request",
  }, class)
end

--- The status' name and sentence of measure or admit, which have no context.
function raw.ask(call, fields, ...)
  local message = ffi.new "char[1024]"
  local settings = ffi.new("tide_predictor_settings", fields)
  local arguments = {...}
  arguments[#arguments + 1] = message
  arguments[#arguments + 1] = 1024
  local status = call(settings, unpack(arguments))
  return ffi.string(lib.tide_status_name(status)), ffi.string(message)
end

--- Maps of texts, each {k = buf, q = buf}.
-- @treturn table k_map, q_map, k_mean (f32 arrays), rank
-- @treturn[2] nil, message, name of the status
function raw.calibrate(texts, settings)
  local n = #texts
  local k, q, kept = ffi.new("tide_view[?]", math.max(n, 1)), ffi.new("tide_view[?]", math.max(n, 1)), {}
  local function view(b)
    kept[#kept + 1] = raw.host(b)
    return kept[#kept]._view
  end
  for i, text in ipairs(texts) do
    k[i - 1] = view(text.k)
    if text.q then q[i - 1] = view(text.q) end
  end
  local c = ffi.new("tide_calibration_settings", settings)
  local rank = c.rank == 0 and 32 or c.rank
  local heads, dim = tonumber(k[0].shape[1]), tonumber(k[0].shape[2])
  local size = math.max(heads * dim * rank, 1)
  local maps = {rank = rank, k_map = ffi.new("float[?]", size), q_map = ffi.new("float[?]", size),
    k_mean = ffi.new("float[?]", math.max(heads * dim, 1))}
  local ok, message, code = raw.outcome(lib.tide_calibrate(tide.context():handle(), c, k, q, n, maps.k_map,
    maps.q_map, maps.k_mean))
  assert(#kept >= n) -- a use after the call, which reads what they point to
  if not ok then return nil, message, code end
  return maps
end

--- Attention by the fields of tide_attend_io; buffers stand for views.
function raw.attend(fields)
  local io = ffi.new "tide_attend_io"
  for name, value in pairs(fields) do
    io[name] = type(value) == "table" and value._view or value
  end
  return raw.outcome(lib.tide_attend(tide.context():handle(), io, nil))
end

--- Fixed normal numbers: a table of n, the same for a seed on every machine but for the last bits of libm.
function raw.normal(n, seed, scale)
  math.randomseed(seed)
  local x = {}
  for i = 1, n do
    x[i] = (scale or 1) * math.sqrt(-2 * math.log(1 - math.random())) * math.cos(2 * math.pi * math.random())
  end
  return x
end

--- The same as a buffer.
function raw.noise(shape, seed, scale, dtype)
  local n = 1
  for _, extent in ipairs(shape) do n = n * extent end
  return assert(tide.from(raw.normal(n, seed, scale), dtype or "f32")):reshape(shape)
end

--- FNV-1a of 64 bits over a list from 0, each entry xored as one value.
function raw.fnv(values, n)
  local hash = 0xcbf29ce484222325ULL
  for i = 0, n - 1 do hash = bit.bxor(hash, values[i]) * 0x100000001b3ULL end
  return bit.tohex(hash, 16)
end

return raw
