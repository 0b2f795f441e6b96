--- Attention over blocks, and rows gathered by id: what quality is measured with.
-- @module tide.attend

local ffi = require "ffi"
local lib = require("tide.cdef").lib
local buf = require "tide.buf"
local check = require "tide.check"
local schema = require "tide.schema"

local attend = {}

local settings = schema.new("attend", {
  q = {"table", required = true, doc = "[rows, q_heads, head_dim], or one row without the first dimension"},
  k = {"table", required = true,
    doc = "[tokens, kv_heads, head_dim], or paged [pool, block_size, kv_heads, head_dim]"},
  v = {"table", required = true, doc = "as k"},
  table = {"table", doc = "i32 [n] or [rows, n]: pool block of each block of the sequence"},
  positions = {"table", doc = "i32 [rows]: a row attends tokens 0 .. its position"},
  blocks = {"table", doc = "i32 [n] or [rows, n]: the blocks to read, -1 padded; default: all"},
  out = {"any", doc = "true, or a buffer f32 [rows, q_heads, head_dim]"},
  lse = {"any", doc = "true, or a buffer f32 [rows, q_heads]"},
  mass = {"any", doc = "true, or a buffer f32 [rows, blocks]: share of attention per block, mean over heads"},
  block_size = {"integer", min = 1, max = 65536, c = "block_size",
    doc = "default 16, or what a paged k says"},
  first_position = {"integer", min = 0, max = 2^31 - 1, c = "first_position",
    doc = "of row 0, without positions"},
  softmax_scale = {"number", min = 0, c = "softmax_scale", doc = "default 1/sqrt(head_dim)"},
  k_scale = {"number", c = "k_scale", doc = "factor of stored k; default 1"},
  v_scale = {"number", c = "v_scale", doc = "factor of stored v; default 1"},
})
attend.settings = settings

local default_block_size = 16

-- One row is a table of one row.
local function rows_of(q)
  if q.n_dims == 2 then return q:reshape{1, q.shape[1], q.shape[2]} end
  if q.n_dims ~= 3 then
    check.misuse("attend: q has the wrong shape (got %s, want [rows, q_heads, head_dim])", tostring(q))
  end
  return q
end

-- Blocks of the sequence: as many as its table names, or as its tokens fill.
local function n_blocks(values)
  local k, blocks = values.k, values.table
  if blocks then return blocks.shape[blocks.n_dims] or 0 end
  if k.n_dims == 4 then return k.shape[1] end
  return math.ceil((k.shape[1] or 0) / (values.block_size or default_block_size))
end

-- The outputs asked for: buffers as given, new ones for true. The mass needs the lse beside it.
local function outputs(ctx, values, q)
  local shapes = {out = q.shape, lse = {q.shape[1], q.shape[2]}, mass = {q.shape[1], n_blocks(values)}}
  local wanted = {out = values.out, lse = values.lse or values.mass ~= nil or nil, mass = values.mass}
  if next(wanted) == nil then wanted.out = true end
  local made = {}
  for name, given in pairs(wanted) do
    local b, message, code = given, nil, nil
    if given == true then b, message, code = buf.make(ctx, "f32", shapes[name], q.device, "attend") end
    if not b then return nil, message, code end
    made[name] = b
  end
  return made
end

local function view(ctx, name, b) return b and buf.view_of("attend: " .. name, b, ctx) or nil end

--- Softmax attention of query rows over a cache, whole or over a list of its blocks. Does not wait.
-- @tparam context ctx
-- @tparam table given q, k, v; table, positions, blocks; out, lse, mass (true or a buffer; none: out);
-- block_size, first_position, softmax_scale, k_scale, v_scale
-- @treturn[1] table out, lse, mass: those asked for, and lse beside mass
-- @treturn[2] nil no room, or the device failed
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local mass = tide.attend{q = c.q, k = c.k, v = c.v, first_position = 1814, mass = true}.mass
function attend.attend(ctx, given)
  local values = settings:read(given)
  view(ctx, "q", values.q)
  local q = rows_of(values.q)
  local io = ffi.new "tide_attend_io"
  settings:fill(io, values)
  io.q, io.k, io.v = view(ctx, "q", q), view(ctx, "k", values.k), view(ctx, "v", values.v)
  io.table, io.blocks = view(ctx, "table", values.table), view(ctx, "blocks", values.blocks)
  io.positions = view(ctx, "positions", values.positions)
  local made, message, code = outputs(ctx, values, q)
  if not made then return nil, message, code end
  io.out, io.lse = view(ctx, "out", made.out), view(ctx, "lse", made.lse)
  io.mass = view(ctx, "mass", made.mass)
  local ok
  ok, message, code = check.status(ctx, check.allocating(lib.tide_attend, ctx:handle(), io, nil))
  if not ok then return nil, message, code end
  return made
end

--- Rows by id: row i of the result is row ids[i]; an id out of range gives zeros. Does not wait.
-- @tparam context ctx
-- @tparam buf src
-- @tparam buf|table ids i32 [n] on the device of src, or a list of numbers
-- @tparam ?buf out where to write, apart from src; default: a new buffer
-- @treturn[1] buf [n, ...]
-- @treturn[2] nil no room, or the device failed
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local rows = tide.gather(k, {3, 1, 4})
function attend.gather(ctx, src, ids, out)
  local from = buf.view_of("gather: src", src, ctx)
  local message, code
  if not buf.is(ids) then
    check.type("gather: ids", ids, "table")
    ids, message, code = buf.from(ctx, ids, {dtype = "i32", device = src.device})
    if not ids then return nil, message, code end
  end
  if not out then
    local shape = {ids.shape[1] or 0}
    for d = 2, src.n_dims do shape[d] = src.shape[d] end
    out, message, code = buf.make(ctx, src.dtype, shape, src.device, "gather")
    if not out then return nil, message, code end
  end
  local to, which = buf.view_of("gather: out", out, ctx), buf.view_of("gather: ids", ids, ctx)
  local ok
  ok, message, code = check.status(ctx, lib.tide_gather(ctx:handle(), to, from, which, nil))
  if not ok then return nil, message, code end
  return out
end

return attend
