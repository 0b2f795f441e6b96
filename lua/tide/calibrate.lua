--- Calibration: projections for predictors from the keys (and queries) of a model, kept as safetensors files.
--
-- A calibration is of one layer: k_map and q_map [kv_heads, head_dim, rank], k_mean [kv_heads, head_dim], and
-- rank, head_dim, kv_heads, layer, centred, query_aware, model as fields.
-- @module tide.calibrate

local ffi = require "ffi"
local lib = require("tide.cdef").lib
local buf = require "tide.buf"
local check = require "tide.check"
local safetensors = require "tide.safetensors"
local schema = require "tide.schema"

local calibrate = {}

local settings = schema.new("calibrate", {
  rank = {"integer", min = 1, max = 128, default = 32, c = "rank", doc = "directions to keep"},
  centred = {"boolean", default = false, doc = "subtract the mean key"},
  query_aware = {"boolean", default = false, doc = "weigh by the second moment of the queries"},
  layer = {"integer", min = 0, doc = "model layer; default: what the captures say"},
  file = {"string", doc = "where to write it"},
})
calibrate.settings = settings

------------------------------------------------------------------------------------------------ making

-- A path, a loaded file, or a table with k and q -> that table, with meta where it has any.
local function source_of(ctx, value)
  if type(value) == "string" then return safetensors.load(ctx, value) end
  if type(value) == "table" then return value end
  check.misuse("calibrate: wants captures, then options (got %s)", check.shown(value))
end

-- Keys or queries of every source, in host memory: views for C, and what keeps them alive.
local function host_views(ctx, name, sources)
  local views, kept = ffi.new("tide_view[?]", #sources), {}
  for i, source in ipairs(sources) do
    if source.has and not source:has(name) then
      return nil, ("%s: not a capture: no tensor %s"):format(source.path, name), "EFORMAT"
    end
    local b = source[name]
    views[i - 1] = buf.view_of(("calibrate: %s of source %d"):format(name, i), b, ctx)
    if b.device ~= "cpu" then
      local host, message, code = b:to "cpu"
      if not host then return nil, message, code end
      views[i - 1], b = host._view, host
    end
    kept[i] = b
  end
  return views, kept
end

-- What every source says of itself, or nil where they differ.
local function common(sources, key)
  local first = sources[1].meta and sources[1].meta[key]
  for _, source in ipairs(sources) do
    if not source.meta or source.meta[key] ~= first then return nil end
  end
  return first
end

local function host_buffer(ctx, memory, shape)
  local b, message, code = buf.make(ctx, "f32", shape, "cpu", "calibration")
  if not b then return nil, message, code end
  return b:write(memory)
end

-- Runs C over the sources; the result as a calibration.
local function compute(ctx, sources, values)
  local k, kept_k, code = host_views(ctx, "k", sources)
  if not k then return nil, kept_k, code end
  local q, kept_q
  if values.query_aware then
    q, kept_q, code = host_views(ctx, "q", sources)
    if not q then return nil, kept_q, code end
  end
  local _, kv_heads, head_dim = unpack(kept_k[1].shape)
  if kept_k[1].n_dims ~= 3 then
    check.misuse("calibrate: k has the wrong shape (got %s, want [tokens, kv_heads, head_dim])",
      tostring(kept_k[1]))
  end
  if kv_heads > 32767 or head_dim > 256 then
    check.misuse("calibrate: k is out of range (got %d heads of %d, want up to 32767 of 1..256)", kv_heads,
      head_dim)
  end
  local struct, n_map = ffi.new "tide_calibration_settings", kv_heads * head_dim * values.rank
  struct.rank, struct.centred, struct.query_aware = values.rank, values.centred, values.query_aware
  local k_map, q_map = ffi.new("float[?]", n_map), ffi.new("float[?]", n_map)
  local k_mean = ffi.new("float[?]", kv_heads * head_dim)
  local status = lib.tide_calibrate(ctx:handle(), struct, k, q, #sources, k_map, q_map, k_mean)
  local ok, message
  ok, message, code = check.status(ctx, status)
  if not ok then return nil, message, code end
  local map_shape = {kv_heads, head_dim, values.rank}
  return {
    rank = values.rank, head_dim = head_dim, kv_heads = kv_heads, centred = values.centred,
    query_aware = values.query_aware, layer = values.layer or tonumber(common(sources, "layer")),
    model = common(sources, "model"),
    k_map = assert(host_buffer(ctx, k_map, map_shape)), q_map = assert(host_buffer(ctx, q_map, map_shape)),
    k_mean = assert(host_buffer(ctx, k_mean, {kv_heads, head_dim})),
  }
end

local function save(ctx, path, made)
  local meta = {format = "tide calibration 1"}
  for _, key in ipairs {"rank", "head_dim", "kv_heads", "layer", "centred", "query_aware", "model"} do
    if made[key] ~= nil then meta[key] = tostring(made[key]) end
  end
  return safetensors.save(ctx, path, {k_map = made.k_map, q_map = made.q_map, k_mean = made.k_mean}, meta)
end

--- Principal directions of keys, for predictors with projection = {calibrated = ...}.
-- @tparam context ctx
-- @param ... captures: paths, loaded files, or tables with k (and q); then options: rank (32), centred,
-- query_aware, layer, file
-- @treturn[1] calibration
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage tide.calibrate("a.safetensors", "b.safetensors", {rank = 16, file = "p.safetensors"})
function calibrate.calibrate(ctx, ...)
  local given, n, options = {...}, select("#", ...), nil
  local last = given[n]
  if type(last) == "table" and getmetatable(last) == nil and last.k == nil then
    options, n = last, n - 1
  end
  local values = settings:read(options)
  if n == 0 then check.misuse("calibrate: wants at least one capture") end
  local sources = {}
  for i = 1, n do
    local source, message, code = source_of(ctx, given[i])
    if not source then return nil, message, code end
    if values.file and source.path and safetensors.same_file(source.path, values.file) then
      check.misuse("calibrate: file is one of the captures (got %s, want another name)", values.file)
    end
    sources[i] = source
  end
  local made, message, code = compute(ctx, sources, values)
  if not made then return nil, message, code end
  if values.file then
    local ok
    ok, message, code = save(ctx, values.file, made)
    if not ok then return nil, message, code end
  end
  return made
end

------------------------------------------------------------------------------------------------ using

local function refusal(path, format, ...)
  return nil, ("%s: not a calibration: "):format(path) .. format:format(...), "EFORMAT"
end

local extents = {"rank", "head_dim", "kv_heads"}

-- nil, or what is wrong with a calibration, whoever made it: C reads its maps by these extents.
local function complaint(made)
  for _, key in ipairs(extents) do
    local n = made[key]
    if type(n) ~= "number" or n % 1 ~= 0 or n < 1 or n > 65536 then
      return ("%s is out of range (got %s, want an integer in 1..65536)"):format(key, check.shown(n))
    end
  end
  local map = ("%d, %d, %d"):format(made.kv_heads, made.head_dim, made.rank)
  local mean = ("%d, %d"):format(made.kv_heads, made.head_dim)
  for name, shape in pairs {k_map = map, q_map = map, k_mean = mean} do
    local b = made[name]
    local found = buf.is(b) and ("%s[%s]"):format(b.dtype, table.concat(b.shape, ", ")) or check.shown(b)
    if found ~= "f32[" .. shape .. "]" then
      return ("%s has the wrong shape (got %s, want f32[%s])"):format(name, found, shape)
    end
  end
end

--- Reads a calibration.
-- @tparam context ctx
-- @tparam string path as tide.calibrate wrote it
-- @treturn[1] calibration
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code "EFILE" or "EFORMAT"
-- @usage local made = assert(calibrate.load(ctx, "p.safetensors"))
function calibrate.load(ctx, path)
  local file, message, code = safetensors.load(ctx, path)
  if not file then return nil, message, code end
  local made = {path = path, model = file.meta.model, centred = file.meta.centred == "true",
    query_aware = file.meta.query_aware == "true", layer = tonumber(file.meta.layer)}
  for _, key in ipairs(extents) do
    made[key] = tonumber(file.meta[key])
    if not made[key] then
      return refusal(path, "metadata %s is no number (got %s)", key, check.shown(file.meta[key]))
    end
  end
  for _, name in ipairs {"k_map", "q_map", "k_mean"} do
    if not file:has(name) then return refusal(path, "no tensor %s", name) end
    made[name], message, code = file:get(name, "cpu")
    if not made[name] then return nil, message, code end
  end
  local wrong = complaint(made)
  if wrong then return refusal(path, "%s", wrong) end
  return made
end

-- nil when a calibration fits, or what is wrong with it.
local function mismatch(made, wanted, values, layer)
  local path = made.path or "calibration"
  local settings_of = {head_dim = values.head_dim, kv_heads = values.kv_heads, rank = wanted.rank
    or made.rank}
  for _, key in ipairs {"head_dim", "kv_heads", "rank"} do
    if made[key] ~= settings_of[key] then
      return ("predictor: %s has %s %d, this predictor wants %d (set by %s)"):format(path, key, made[key],
        settings_of[key], key)
    end
  end
  if layer and made.layer and made.layer ~= layer then
    return ("predictor: %s is of layer %d, this predictor wants %d (set by layer of its projection)"):format(
      path, made.layer, layer)
  end
end

-- One calibration for each layer, as tables.
local function list_of(ctx, given)
  if type(given) == "string" or (type(given) == "table" and given.k_map) then given = {given} end
  if type(given) ~= "table" or #given == 0 then
    check.misuse("predictor: projection: calibrated wants a file or a calibration (got %s)",
      check.shown(given))
  end
  local list = {}
  for i, value in ipairs(given) do
    local message, code
    if type(value) == "string" then value, message, code = calibrate.load(ctx, value) end
    if not value then return nil, message, code end
    local wrong = type(value) == "table" and complaint(value) or type(value) ~= "table" and check.shown(value)
    if wrong then check.misuse("predictor: projection: calibrated: not a calibration: %s", wrong) end
    list[i] = value
  end
  return list
end

--- Host arrays of a predictor's calibrations, all layers in a row; for tide.predictor.
-- @tparam context ctx
-- @tparam table wanted calibrated; rank and layer when they must be so
-- @tparam table values the predictor's settings
-- @treturn[1] table rank, and k_map, q_map, k_mean as C arrays to be kept while they are read
-- @treturn[2] nil a calibration does not fit
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local maps = calibrate.maps(ctx, {calibrated = "p.safetensors"}, settings)
function calibrate.maps(ctx, wanted, values)
  local list, message, code = list_of(ctx, wanted.calibrated)
  if not list then return nil, message, code end
  if #list ~= values.layers then
    return nil, ("predictor: %d calibrations for %d layers (set by layers)"):format(#list, values.layers),
      "EFORMAT"
  end
  local rank = list[1].rank
  local n_map, n_mean = values.kv_heads * values.head_dim * rank, values.kv_heads * values.head_dim
  local maps = {rank = rank, k_map = ffi.new("float[?]", #list * n_map), q_map = ffi.new("float[?]",
    #list * n_map),
    k_mean = ffi.new("float[?]", #list * n_mean)}
  local first_layer = wanted.layer or (#list > 1 and list[1].layer) or nil
  for i, made in ipairs(list) do
    local wrong = mismatch(made, {rank = wanted.rank or rank}, values, first_layer and first_layer + i - 1)
    if wrong then return nil, wrong, "EFORMAT" end
    for name, n in pairs {k_map = n_map, q_map = n_map, k_mean = n_mean} do
      local array
      array, message, code = made[name]:read()
      if not array then return nil, message, code end
      ffi.copy(maps[name] + (i - 1) * n, array.pointer, n * 4)
    end
  end
  return maps
end

return calibrate
