--- Predictors: a summary of every KV block, and a ranking of blocks for a query.
--
-- Three choices: summary ("mean", "tokens", "minmax"), projection ("identity", {random = seed, rank = 32},
-- {calibrated = "p.safetensors"}), aggregate ("mass", "max"). Block ids and layers count from 0.
-- @module tide.predictor

local ffi = require "ffi"
local lib = require("tide.cdef").lib
local buf = require "tide.buf"
local check = require "tide.check"
local schema = require "tide.schema"

local predictor = {}
local methods = {}

local summaries = {mean = lib.TIDE_SUMMARY_MEAN, tokens = lib.TIDE_SUMMARY_TOKENS,
  minmax = lib.TIDE_SUMMARY_MINMAX}
local aggregates = {mass = lib.TIDE_AGGREGATE_MASS, max = lib.TIDE_AGGREGATE_MAX}
local max_int = 2^31 - 1

local settings = schema.new("predictor", {
  blocks = {"integer", min = 1, max = max_int, required = true, c = "n_blocks",
    doc = "of the pool, per layer"},
  block_size = {"integer", min = 1, max = 1024, default = 16, c = "block_size", doc = "tokens a block"},
  q_heads = {"integer", min = 1, max = 65536, required = true, c = "n_q_heads",
    doc = "a multiple of kv_heads"},
  kv_heads = {"integer", min = 1, max = 65536, required = true, c = "n_kv_heads", doc = "heads of the keys"},
  head_dim = {"integer", min = 1, max = 256, required = true, c = "head_dim", doc = "width of a head"},
  layers = {"integer", min = 1, max = 65536, default = 1, c = "n_layers", doc = "layers that it keeps apart"},
  summary = {"choice", among = {"mean", "tokens", "minmax"}, default = "mean",
    doc = "what a block is reduced to"},
  aggregate = {"choice", among = {"mass", "max"}, default = "mass", doc = "what a score estimates"},
  projection = {"any", default = "identity",
    doc = '"identity", {random = seed, rank =}, {calibrated = file, layer =}'},
  max_rows = {"integer", min = 1, max = 65536, c = "max_rows", doc = "query rows scored at once; default 8"},
  softmax_scale = {"number", min = 0, c = "softmax_scale", doc = "of the mass; default 1/sqrt(head_dim)"},
  predict = {"boolean", default = true, doc = "false records nothing: order falls back to recency"},
  device = {"string", doc = "default: the context's own"},
  label = {"string", c = "label", doc = "for the ledger; default \"predictor\""},
})
predictor.settings = settings

local random = schema.new("predictor: projection", {
  random = {"any", doc = "seed, or true for 0xCAFEF00D"},
  rank = {"integer", min = 1, max = 128, default = 32, doc = "width of the stored vectors"},
})
local calibrated = schema.new("predictor: projection", {
  calibrated = {"any", doc = "a file of tide.calibrate, a list of one for each layer, or what it returned"},
  rank = {"integer", min = 1, max = 128, doc = "refused when the file has another"},
  layer = {"integer", min = 0, doc = "model layer of layer 0; refused when the file is of another"},
})

------------------------------------------------------------------------------------------------ opening

local function random_projection(struct, given)
  local values = random:read(given)
  local seed = values.random
  if seed == true then seed = 0 end
  local ok = type(seed) == "number" and seed % 1 == 0 and seed >= 0 and seed <= 2^53
  if not ok and not ffi.istype("uint64_t", seed) then
    check.misuse("predictor: projection: random is a seed (got %s, want an integer of 0 or more)",
      check.shown(seed))
  end
  struct.projection, struct.seed, struct.rank = lib.TIDE_PROJECTION_RANDOM, seed, values.rank
  return true
end

-- Host arrays of all layers, to be kept until the predictor has copied them.
local function calibrated_projection(ctx, struct, given, values)
  local wanted = calibrated:read(given)
  local maps, message, code = require("tide.calibrate").maps(ctx, wanted, values)
  if not maps then return nil, message, code end
  struct.projection, struct.rank = lib.TIDE_PROJECTION_CALIBRATED, maps.rank
  struct.k_map, struct.q_map, struct.k_mean = maps.k_map, maps.q_map, maps.k_mean
  return maps
end

local function set_projection(ctx, struct, values)
  local projection = values.projection
  if projection == "identity" then
    struct.projection = lib.TIDE_PROJECTION_IDENTITY
    return true
  end
  if projection == "random" then projection = {random = true} end
  if type(projection) ~= "table" or (projection.random == nil) == (projection.calibrated == nil) then
    check.misuse('predictor: projection has the wrong value (got %s, want "identity", '
      .. '{random = seed, rank = 32} or {calibrated = "file.safetensors"})', check.shown(projection))
  end
  if projection.random ~= nil then return random_projection(struct, projection) end
  return calibrated_projection(ctx, struct, projection, values)
end

-- The settings as C takes them, and what must stay alive while C reads them.
local function c_settings(ctx, given)
  local values = settings:read(given)
  local struct = ffi.new "tide_predictor_settings"
  settings:fill(struct, values)
  struct.summary, struct.aggregate = summaries[values.summary], aggregates[values.aggregate]
  struct.no_predict = values.predict and 0 or 1
  local kept, message, code = set_projection(ctx, struct, values)
  if not kept then return nil, message, code end
  local device
  device, message, code = ctx:device_id(values.device)
  if not device then return nil, message, code end
  struct.device = device
  return struct, values, kept
end

local function measure(struct)
  local sizes, message = ffi.new "tide_predictor_sizes", ffi.new "char[1024]"
  local status = lib.tide_predictor_measure(struct, sizes, message, 1024)
  local ok, text, code = check.outcome(status, ffi.string(message))
  if not ok then return nil, text, code end
  return {
    vectors_bytes = tonumber(sizes.vectors_bytes), scratch_bytes = tonumber(sizes.scratch_bytes),
    bytes_per_token = sizes.bytes_per_token, entries = sizes.entries, rank = sizes.rank,
  }
end

--- Opens a predictor.
-- @tparam context ctx
-- @tparam table given blocks, q_heads, kv_heads, head_dim; block_size, layers, summary, projection,
-- aggregate, max_rows, softmax_scale, predict, device, label
-- @treturn[1] predictor
-- @treturn[2] nil no room, or a calibration that does not fit
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local p = tide.predictor{blocks = 256, q_heads = 9, kv_heads = 3, head_dim = 64, summary = "mean"}
function predictor.open(ctx, given)
  local struct, values, kept = c_settings(ctx, given)
  if not struct then return nil, values, kept end
  local sizes, text, why = measure(struct)
  if not sizes then return nil, text, why end
  local out = ffi.new "tide_predictor *[1]"
  local status = check.allocating(lib.tide_predictor_open, ctx:handle(), struct, out)
  local ok, message, code = check.status(ctx, status)
  if not ok then return nil, message, code end
  return setmetatable({
    ctx = ctx, settings = values, device = values.device or ctx.device, _sizes = sizes,
    _handle = ffi.gc(out[0], lib.tide_predictor_close), _request = ffi.new "tide_score_request",
  }, predictor.class)
end

--- What a predictor would take, without making one.
-- @tparam context ctx
-- @tparam table given as for predictor
-- @treturn[1] table vectors_bytes, scratch_bytes, bytes_per_token, entries, rank
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage print(tide.measure{blocks = 8192, q_heads = 32, kv_heads = 8, head_dim = 128}.vectors_bytes)
function predictor.measure(ctx, given)
  local struct, values, kept = c_settings(ctx, given)
  if not struct then return nil, values, kept end
  return measure(struct)
end

------------------------------------------------------------------------------------------------ calls

local function live(p, what)
  if type(p) ~= "table" or getmetatable(p) ~= predictor.class then
    check.misuse("%s: wants a predictor before the colon (got %s)", what, check.shown(p))
  end
  if not p._handle then check.misuse("%s: the predictor is closed", what) end
  if p.ctx._handle == nil then check.misuse("context: closed") end
  return p._handle
end

-- Names that a call understands; a misspelled one would silently be the default.
local function call_schema(what, fields)
  local names = {}
  for name in pairs(fields) do names[#names + 1] = name end
  table.sort(names)
  return function(options)
    if type(options) ~= "table" then
      check.misuse("%s: wants a table of options (got %s)", what, check.shown(options))
    end
    for name in pairs(options) do
      if not fields[name] then
        check.misuse("%s: unknown option %s; %s", what, check.shown(name), check.suggest(name, names))
      end
    end
  end
end

local none = {}
local check_write = call_schema("predictor:write", {layer = 1, src = 1, dst = 1, first = 1})
local check_append = call_schema("predictor:append", {layer = 1, first = 1, table = 1})
local check_forget = call_schema("predictor:forget", {layer = 1, blocks = 1})
local check_score = call_schema("predictor:score",
  {layer = 1, blocks = 1, lengths = 1, first = 1, n = 1, out = 1})
local check_project = call_schema("predictor:project", {layer = 1, out = 1})

local function integer(what, value, default)
  if value == nil then return default end
  return check.integer(what, value, 0, max_int)
end

local function optional_view(p, what, b)
  if b == nil then return nil end
  return buf.view_of(what, b, p.ctx)
end

-- self, or the refusal.
local function done(p, status)
  if status == 0 then return p end
  local ok, message, code = check.status(p.ctx, status)
  return ok, message, code
end

--- Summarises whole blocks, all in one launch.
-- @tparam buf k [tokens, kv_heads, head_dim], an unfinished last block is left out; or [pool, block_size,
-- kv_heads, head_dim]
-- @tparam ?table options layer; src: which blocks of k; dst: which block ids they are; first: id of the first
-- without dst
-- @treturn[1] predictor itself
-- @treturn[2] nil the device failed
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage p:write(c.k)
function methods:write(k, options)
  options = options or none
  check_write(options)
  local handle, view = live(self, "predictor:write"), buf.view_of("predictor:write: k", k, self.ctx)
  local src = optional_view(self, "predictor:write: src", options.src)
  local dst = optional_view(self, "predictor:write: dst", options.dst)
  local layer = integer("predictor:write: layer", options.layer, 0)
  local first = integer("predictor:write: first", options.first, 0)
  return done(self, lib.tide_predictor_write(handle, layer, view, src, dst, first, nil))
end

--- Summarises a prompt that arrives in pieces; a block once its last token has come.
-- @tparam buf k tokens first .. of one sequence, [tokens, kv_heads, head_dim]
-- @tparam ?table options first: position of the first token, 0 starts anew; layer; table: the sequence's
-- block table
-- @treturn[1] predictor itself
-- @treturn[2] nil the device failed
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage p:append(k:slice(0, 100, 7), {first = 100})
function methods:append(k, options)
  options = options or none
  check_append(options)
  local handle, view = live(self, "predictor:append"), buf.view_of("predictor:append: k", k, self.ctx)
  local blocks = optional_view(self, "predictor:append: table", options.table)
  local layer = integer("predictor:append: layer", options.layer, 0)
  local first = check.integer("predictor:append: first", options.first or 0, 0)
  return done(self, lib.tide_predictor_append(handle, layer, first, view, blocks, nil))
end

--- Forgets blocks: they score -infinity until written again.
-- @tparam ?table options layer (default: every one); blocks: i32 ids (default: all)
-- @treturn[1] predictor itself
-- @treturn[2] nil the device failed
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage p:forget{blocks = tide.from({7, 9}, "i32")}
function methods:forget(options)
  options = options or none
  check_forget(options)
  local handle = live(self, "predictor:forget")
  local blocks = optional_view(self, "predictor:forget: blocks", options.blocks)
  local layer = integer("predictor:forget: layer", options.layer, -1)
  return done(self, lib.tide_predictor_forget(handle, layer, blocks, nil))
end

-- The context's own buffer of no ids: a count of 0 means "to the end of the pool" in C, an empty list means
-- none.
local function no_blocks(p)
  local b = p._no_blocks
  if not b then
    b = assert(buf.make(p.ctx, "i32", {0}, p.device, "predictor"))
    p._no_blocks = b
  end
  return b
end

-- How many blocks are scored, for the shape of a new out.
local function n_scored(p, options, first)
  local blocks, n = options.blocks, options.n
  if blocks then
    if n or options.first then
      check.misuse("predictor:score: blocks exclude first and n; pass a slice of blocks")
    end
    return blocks.shape[blocks.n_dims] or 0
  end
  local live_blocks = p.settings.blocks
  if first > live_blocks or (n and n > live_blocks - first) then
    check.misuse("predictor:score: out of range (got first %d and n %d, want within %d, set by blocks)",
      first, n or 0, live_blocks)
  end
  return n or live_blocks - first
end

local function scores_for(p, q, n, out)
  if out then return out end
  if q.n_dims < 2 or q.n_dims > 3 then
    check.misuse("predictor:score: q has the wrong shape (got %s, want [q_heads, head_dim] or "
      .. "[rows, q_heads, head_dim])", tostring(q))
  end
  local shape = q.n_dims == 3 and {q.shape[1], n} or {n}
  return buf.make(p.ctx, "f32", shape, p.device, "scores")
end

--- Scores blocks for a query. Does not wait.
-- @tparam buf q [q_heads, head_dim], or [rows, q_heads, head_dim]
-- @tparam ?table options layer; blocks: i32 ids, [n] or [rows, n]; lengths: i32 [rows], how many of them
-- count; or first and n: a range of the pool (default: all); out: where to write (default: a new buffer)
-- @treturn[1] buf f32 [n] or [rows, n]; a block never written scores -infinity
-- @treturn[2] nil no room, or the device failed
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local s = p:score(c.q[511], {n = 145})
function methods:score(q, options)
  options = options or none
  check_score(options)
  local handle, view = live(self, "predictor:score"), buf.view_of("predictor:score: q", q, self.ctx)
  local layer = integer("predictor:score: layer", options.layer, 0)
  local first = integer("predictor:score: first", options.first, 0)
  local blocks = optional_view(self, "predictor:score: blocks", options.blocks)
  local lengths = optional_view(self, "predictor:score: lengths", options.lengths)
  integer("predictor:score: n", options.n)
  local n = n_scored(self, options, first)
  check.integer("predictor:score: n", n, 0, max_int)
  local out, message, code = scores_for(self, q, n, options.out)
  if not out then return nil, message, code end
  local request = self._request
  request.blocks = blocks or (n == 0 and no_blocks(self)._view or nil)
  request.lengths = lengths
  request.first, request.count = first, n
  local scores = buf.view_of("predictor:score: out", out, self.ctx)
  local status = lib.tide_predictor_score(handle, layer, view, request, scores, nil)
  if status == 0 then return out end
  return check.status(self.ctx, status)
end

local function projected_for(p, q, out)
  if out then return out end
  local heads, rank = p.settings.q_heads, p._sizes.rank
  local shape = q.n_dims == 3 and {q.shape[1], heads, rank} or {heads, rank}
  return buf.make(p.ctx, "bf16", shape, p.device, "projected")
end

--- Projected queries: what the score multiplies with.
-- @tparam buf q as for score
-- @tparam ?table options layer; out
-- @treturn[1] buf bf16 [q_heads, rank] or [rows, q_heads, rank]
-- @treturn[2] nil no room, or the device failed
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage p:project(c.q[511]):describe()
function methods:project(q, options)
  options = options or none
  check_project(options)
  local handle, view = live(self, "predictor:project"), buf.view_of("predictor:project: q", q, self.ctx)
  local out, message, code = projected_for(self, q, options.out)
  if not out then return nil, message, code end
  local layer = integer("predictor:project: layer", options.layer, 0)
  local projected = buf.view_of("predictor:project: out", out, self.ctx)
  local status = lib.tide_predictor_project(handle, layer, view, projected, nil)
  if status == 0 then return out end
  return check.status(self.ctx, status)
end

--- A copy of the stored vectors of a block. Waits.
-- @tparam number layer
-- @tparam number block
-- @treturn[1] buf bf16 [kv_heads, entries, rank]
-- @treturn[2] nil the block holds nothing
-- @treturn[2] string message
-- @usage local vectors = p:slot(0, 125)
function methods:slot(layer, block)
  local view, written = ffi.new "tide_view", ffi.new "int32_t[1]"
  local handle = live(self, "predictor:slot")
  check.integer("predictor:slot: layer", layer, 0, max_int)
  check.integer("predictor:slot: block", block, 0, max_int)
  local status = lib.tide_predictor_slot(handle, layer, block, view, written)
  local ok, message, code = check.status(self.ctx, status)
  if not ok then return nil, message, code end
  if written[0] == 0 then
    return nil, ("predictor:slot: block %d of layer %d holds nothing"):format(block, layer)
  end
  local shape = {}
  for i = 1, view.n_dims do shape[i] = tonumber(view.shape[i - 1]) end
  local stored = assert(buf.wrap(self.ctx, view.data, "bf16", shape, {device = self.device}))
  local copy
  copy, message, code = stored:to(self.device)
  assert(self.ctx:sync(self.device))
  stored:close()
  return copy, message, code
end

--- What it takes.
-- @treturn table vectors_bytes, scratch_bytes, bytes_per_token (and kv head), entries (vectors a block), rank
-- @usage print(p:sizes().bytes_per_token)
function methods:sizes()
  local copy = {}
  for name, value in pairs(self._sizes) do copy[name] = value end
  return copy
end

--- Gives its memory back. Again is fine.
-- @usage p:close()
function methods:close()
  if not self._handle then return end
  lib.tide_predictor_close(ffi.gc(self._handle, nil))
  self._handle = nil
end

predictor.class = {
  __index = methods,
  __tostring = function(p)
    local s = p.settings
    local projection = s.projection
    if type(projection) == "table" then projection = projection.random and "random" or "calibrated" end
    return ("predictor %s/%s/%s, %d layers x %d blocks of %d, %d:%d heads of %d, rank %d, %s"):format(
      s.summary, projection, s.aggregate, s.layers, s.blocks, s.block_size, s.q_heads, s.kv_heads, s.head_dim,
      p._sizes.rank, p._handle and p.device or "(closed)")
  end,
}

return predictor
