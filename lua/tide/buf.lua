--- Buffers: numbers with a dtype, a shape and a device. Views share memory; reading is the one visible wait.
--
-- Fields: shape (a list, a new one each time), dtype, device, n (elements), n_dims. `b[i]` counts from 0: a
-- view with one dimension less, or the number itself where b has one dimension (that reads, so it waits).
-- @module tide.buf

local ffi = require "ffi"
local lib = require("tide.cdef").lib
local array = require "tide.array"
local check = require "tide.check"
local schema = require "tide.schema"

local buf = {}
local methods = {}

buf.dtypes = array.dtype_names
local dtypes, name_of_dtype = array.dtypes, array.dtype_of_number

local settings = schema.new("buf", {
  dtype = {"choice", among = buf.dtypes, default = "f32", doc = "of the elements"},
  shape = {"shape", required = true, doc = "up to 5 extents; {} is one number"},
  device = {"string", doc = "default: the context's own"},
  pinned = {"boolean", default = false, doc = "host memory that a cuda device reads by itself"},
  label = {"string", doc = "for the ledger"},
})
buf.settings = settings

------------------------------------------------------------------------------------------------ objects

local c_view = ffi.typeof "tide_view"

-- Written out for each rank, here and in fill_shape: a loop of one or two turns inside of a caller's hot loop
-- is given up by the compiler, and the caller's loop with it.
local function shape_of_view(view)
  local n, e = view.n_dims, view.shape
  if n == 0 then return {} end
  if n == 1 then return {tonumber(e[0])} end
  if n == 2 then return {tonumber(e[0]), tonumber(e[1])} end
  if n == 3 then return {tonumber(e[0]), tonumber(e[1]), tonumber(e[2])} end
  if n == 4 then return {tonumber(e[0]), tonumber(e[1]), tonumber(e[2]), tonumber(e[3])} end
  return {tonumber(e[0]), tonumber(e[1]), tonumber(e[2]), tonumber(e[3]), tonumber(e[4])}
end

local function count_of(view)
  local n, e = view.n_dims, view.shape
  if n == 0 then return 1 end
  if n == 1 then return tonumber(e[0]) end
  if n == 2 then return tonumber(e[0] * e[1]) end
  if n == 3 then return tonumber(e[0] * e[1] * e[2]) end
  if n == 4 then return tonumber(e[0] * e[1] * e[2] * e[3]) end
  return tonumber(e[0] * e[1] * e[2] * e[3] * e[4])
end

local function fill_shape(struct, shape)
  local e = struct.shape
  struct.n_dims = #shape
  e[0], e[1], e[2], e[3], e[4] = shape[1] or 0, shape[2] or 0, shape[3] or 0, shape[4] or 0, shape[5] or 0
end

-- Takes over one reference of a C buffer. anchor: what must live as long as the memory, if anything does.
local function adopt(ctx, handle, anchor)
  local view = c_view()
  lib.tide_buf_view(handle, view)
  return setmetatable({
    ctx = ctx, _handle = ffi.gc(handle, lib.tide_buf_close), _view = view, _anchor = anchor,
    n = count_of(view), n_dims = view.n_dims, dtype = name_of_dtype[view.dtype],
    device = ctx._names[view.device],
  }, buf.class)
end

local out = ffi.new "tide_buf *[1]"

-- The outcome of a C call that filled out.
local function adopted(ctx, status, anchor)
  local ok, message, code = check.status(ctx, status)
  if not ok then return nil, message, code end
  return adopt(ctx, out[0], anchor)
end

local function live(b, what)
  if not buf.is(b) then check.misuse("%s: wants a buffer before the colon (got %s)", what, check.shown(b)) end
  if not b._handle then check.misuse("%s: the buffer is closed", what) end
  b.ctx:handle()
  return b._handle
end

--- Whether a value is a buffer.
-- @param value anything
-- @treturn boolean
-- @usage assert(buf.is(c.k))
function buf.is(value) return type(value) == "table" and getmetatable(value) == buf.class end

--- The view of an argument that must be an open buffer, or misuse.
-- @tparam string what the argument, as messages name it: "predictor:score: q"
-- @tparam buf b
-- @tparam ?context ctx whose call it is: a buffer of another context will do if its device has one number in
-- both
-- @treturn cdata tide_view, owned by b
-- @usage local q = buf.view_of("predictor:score: q", q, p.ctx)
function buf.view_of(what, b, ctx)
  if not buf.is(b) then check.misuse("%s: wants a buffer (got %s)", what, check.shown(b)) end
  live(b, what)
  if ctx and b.ctx ~= ctx and ctx._names[b._view.device] ~= b.device then
    check.misuse("%s: lies on %s of another context (want a device of this one: %s); copy it into this one",
      what, b.device, tostring(ctx))
  end
  return b._view
end

local c_settings = ffi.typeof "tide_buf_settings"

--- As new, for callers whose arguments are known to be right.
-- @tparam context ctx
-- @tparam string dtype
-- @tparam table shape
-- @tparam ?string device
-- @tparam ?string label
-- @tparam ?boolean pinned
-- @treturn[1] buf
-- @treturn[2] nil no room
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local ids = buf.make(ctx, "i32", {n}, nil, "topk")
function buf.make(ctx, dtype, shape, device, label, pinned)
  local id, message, code = ctx:device_id(device)
  if not id then return nil, message, code end
  local struct = c_settings()
  fill_shape(struct, shape)
  struct.dtype, struct.device, struct.pinned = dtypes[dtype].number, id, pinned and 1 or 0
  struct.label = label
  return adopted(ctx, check.allocating(lib.tide_buf_new, ctx:handle(), struct, out))
end

--- A new buffer; its contents are undefined.
-- @tparam context ctx
-- @tparam table given dtype ("f32"), shape, device, pinned, label
-- @treturn[1] buf
-- @treturn[2] nil no room
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local b = tide.buf{dtype = "bf16", shape = {145, 3, 64}}
function buf.new(ctx, given)
  local values = settings:read(given)
  return buf.make(ctx, values.dtype, values.shape, values.device, values.label, values.pinned)
end

--- A new buffer of zeros.
-- @tparam context ctx
-- @tparam table given as for buf
-- @treturn[1] buf
-- @treturn[2] nil no room
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local b = tide.zeros{shape = {16}}
function buf.zeros(ctx, given)
  local b, message, code = buf.new(ctx, given)
  if not b then return nil, message, code end
  return b:fill(0)
end

--- A buffer with the numbers of a list, nested for more dimensions.
-- @tparam context ctx
-- @tparam table values numbers, or lists of lists
-- @tparam[opt="f32"] string|table given dtype, or settings as for buf (shape: the list's own)
-- @treturn[1] buf
-- @treturn[2] nil no room
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local ids = tide.from({3, 1, 2}, "i32")
function buf.from(ctx, values, given)
  check.type("tide.from: values", values, "table")
  local wanted = {}
  for key, value in pairs(type(given) == "table" and given or {dtype = given}) do wanted[key] = value end
  wanted.shape = wanted.shape or array.shape_of(values)
  local b, message, code = buf.new(ctx, wanted)
  if not b then return nil, message, code end
  return b:write(values)
end

--- Wraps memory that somebody else owns, without a copy.
-- @tparam context ctx
-- @tparam cdata pointer its first element
-- @tparam string dtype of its elements
-- @tparam table shape contiguous, last dimension fastest
-- @tparam ?table options device ("cpu"); release: a C function called with arg once when the last view has
-- gone; arg
-- @treturn[1] buf
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local b = tide.wrap(ffi.new("float[6]"), "f32", {2, 3})
function buf.wrap(ctx, pointer, dtype, shape, options)
  options = buf.wrap_settings:read(options)
  local data = check.pointer("tide.wrap: pointer", pointer)
  local values = settings:read{dtype = dtype, shape = shape}
  local device, message, code = ctx:device_id(options.device)
  if not device then return nil, message, code end
  local view = ffi.new "tide_view"
  view.data, view.dtype, view.device = data, dtypes[values.dtype].number, device
  fill_shape(view, values.shape)
  local status = lib.tide_buf_wrap(ctx:handle(), view, options.release, options.arg, out)
  return adopted(ctx, status, not options.release and pointer or nil)
end

buf.wrap_settings = schema.new("tide.wrap", {
  device = {"string", default = "cpu", doc = "where the memory is"},
  release = {"any", doc = "C function (void *), never a Lua one"},
  arg = {"any", doc = "what release is given"},
})

--- Takes over a DLPack tensor.
-- @tparam context ctx
-- @tparam cdata tensor DLManagedTensor *; tide calls its deleter when the last view has gone
-- @treturn[1] buf
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local b = tide.from_dlpack(other:to_dlpack())
function buf.from_dlpack(ctx, tensor)
  local pointer = check.pointer("tide.from_dlpack: tensor", tensor)
  return adopted(ctx, lib.tide_buf_from_dlpack(ctx:handle(), pointer, out))
end

------------------------------------------------------------------------------------------------ views

local function child(b, status) return adopted(b.ctx, status, b._anchor) end

--- Part of a dimension.
-- @tparam number dim which, from 0
-- @tparam number first its first index
-- @tparam number count how many
-- @treturn buf a view
-- @usage local last = k:slice(0, k.shape[1] - 16, 16)
function methods:slice(dim, first, count)
  local handle = live(self, "buffer:slice")
  check.integer("buffer:slice: dim", dim, 0, math.max(self.n_dims - 1, 0))
  check.integer("buffer:slice: first", first, 0)
  check.integer("buffer:slice: count", count, 0)
  return child(self, lib.tide_buf_slice(handle, dim, first, count, out))
end

--- The same elements in another shape; contiguous buffers only.
-- @tparam table shape extents; one may be -1: what is left
-- @treturn buf a view
-- @usage local flat = k:reshape{-1}
function methods:reshape(shape)
  local handle = live(self, "buffer:reshape")
  check.type("buffer:reshape: shape", shape, "table")
  local extents, known, open = ffi.new "int64_t[5]", 1, nil
  if #shape > 5 then check.misuse("buffer:reshape: too many dimensions (got %d, want at most 5)", #shape) end
  for i, extent in ipairs(shape) do
    extents[i - 1] = check.integer("buffer:reshape: extent", extent, -1)
    if extent ~= -1 then known = known * extent
    elseif open then check.misuse("buffer:reshape: more than one extent is -1")
    else open = i - 1 end
  end
  if open then
    if known == 0 or self.n % known ~= 0 then
      check.misuse("buffer:reshape: %d elements do not divide by %d", self.n, known)
    end
    extents[open] = self.n / known
  end
  return child(self, lib.tide_buf_reshape(handle, #shape, extents, out))
end

--- Dimensions in another order.
-- @tparam table order dimension i of the result is order[i + 1] of this one, from 0
-- @treturn buf a view
-- @usage local by_head = k:permute{1, 0, 2}
function methods:permute(order)
  local handle = live(self, "buffer:permute")
  check.type("buffer:permute: order", order, "table")
  if #order ~= self.n_dims then
    check.misuse("buffer:permute: order of the wrong length (got %d, want %d)", #order, self.n_dims)
  end
  local dims = ffi.new "int32_t[5]"
  for i, d in ipairs(order) do dims[i - 1] = check.integer("buffer:permute: order", d, 0, self.n_dims - 1) end
  return child(self, lib.tide_buf_permute(handle, dims, out))
end

local function index(b, i)
  local handle = live(b, "buffer: index")
  check.integer("buffer: index", i, 0, b.n_dims > 0 and b.shape[1] - 1 or 0)
  local view, message, code = child(b, lib.tide_buf_index(handle, i, out))
  if not view or b.n_dims > 1 then return view, message, code end
  local value = view:read()[0]
  view:close()
  return value
end

------------------------------------------------------------------------------------------------ contents

-- self, or the refusal.
local function done(b, status)
  local ok, message, code = check.status(b.ctx, status)
  if not ok then return nil, message, code end
  return b
end

--- Sets every element.
-- @tparam number value
-- @treturn buf itself
-- @usage b:fill(-math.huge)
function methods:fill(value)
  local handle = live(self, "buffer:fill")
  return done(self, lib.tide_buf_fill(handle, check.type("buffer:fill: value", value, "number"), nil))
end

--- Copies the elements of another buffer of the same shape; dtype and device may differ. Waits when it ends
-- on the host: reading a host buffer asks no other device.
-- @tparam buf src
-- @treturn buf itself
-- @usage k_pool[7]:copy(k:slice(0, 112, 16))
function methods:copy(src)
  local handle = live(self, "buffer:copy")
  buf.view_of("buffer:copy: src", src)
  local status = check.allocating(lib.tide_buf_copy, handle, src._handle, nil)
  if status == 0 and self.device == "cpu" and src.device ~= "cpu" then
    status = lib.tide_sync(self.ctx:handle(), src._view.device, nil)
  end
  return done(self, status)
end

--- A copy on a device, with a dtype, or both. Waits when it ends on the host.
-- @tparam string target device or dtype
-- @tparam ?string dtype when target is a device
-- @treturn[1] buf new and contiguous
-- @treturn[2] nil no room
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local host = s:to("cpu", "f32")
function methods:to(target, dtype)
  live(self, "buffer:to")
  check.type("buffer:to: target", target, "string")
  local device = target
  if dtypes[target] then device, dtype = self.device, target end
  if dtype ~= nil and not dtypes[dtype] then
    check.misuse("buffer:to: unknown dtype %s; %s", check.shown(dtype), check.suggest(dtype, buf.dtypes))
  end
  local copy, message, code = buf.make(self.ctx, dtype or self.dtype, self.shape, device, "copy")
  if not copy then return nil, message, code end
  return copy:copy(self)
end

--- The elements on the host. Waits.
-- @treturn[1] array [i] from 0 in row-major order, n, shape, dtype, pointer (cdata), totable()
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local best = s:read()[42]
function methods:read()
  local handle = live(self, "buffer:read")
  local dtype = dtypes[self.dtype]
  if not dtype.ctype then
    local wide, message, code = self:to("cpu", "f32")
    if not wide then return nil, message, code end
    local values
    values, message, code = wide:read()
    wide:close()
    return values, message, code
  end
  local values = array.new(self.dtype, self.shape, self.n)
  local status = check.allocating(lib.tide_buf_read, handle, values.pointer, self.n * dtype.bytes)
  local ok, message, code = check.status(self.ctx, status)
  if not ok then return nil, message, code end
  return values
end

--- Replaces the elements. Waits.
-- @tparam table|array|cdata values a list (flat or nested), an array as read gives it, or a C array of this
-- dtype
-- @treturn[1] buf itself
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage b:write{1, 2, 3}
function methods:write(values)
  local handle = live(self, "buffer:write")
  local dtype = dtypes[self.dtype]
  if type(values) == "cdata" then
    if not tostring(ffi.typeof(values)):find("]>$") then
      check.misuse("buffer:write: wants a C array, whose size is known (got %s)",
        tostring(ffi.typeof(values)))
    end
    return done(self, check.allocating(lib.tide_buf_write, handle, values, ffi.sizeof(values)))
  end
  local source = array.of("buffer:write", values, dtype.ctype and self.dtype or "f32", self)
  if dtype.ctype then
    return done(self, check.allocating(lib.tide_buf_write, handle, source.pointer, self.n * dtype.bytes))
  end
  local wide, message, code = buf.make(self.ctx, "f32", self.shape, "cpu", "copy")
  if not wide then return nil, message, code end
  wide:write(source)
  local ok
  ok, message, code = self:copy(wide)
  self.ctx:sync(self.device)
  wide:close()
  return ok, message, code
end

--- The stored bytes on the host, whatever the dtype. Waits.
-- @treturn[1] cdata uint8_t array
-- @treturn[1] number its bytes
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local bytes, n = b:bytes()
function methods:bytes()
  local handle = live(self, "buffer:bytes")
  local n = self.n * dtypes[self.dtype].bytes
  array.want_room("buffer:bytes", n)
  local bytes = ffi.new("uint8_t[?]", math.max(n, 1))
  local ok, message, code = check.status(self.ctx, check.allocating(lib.tide_buf_read, handle, bytes, n))
  if not ok then return nil, message, code end
  return bytes, n
end

--- Ids of the k largest in ascending order; ties go to the lower id, NaN comes last. Waits.
-- @tparam number k how many; the last dimension has min(k, its extent)
-- @treturn[1] buf i32 [k], or [rows, k] for two dimensions, on the same device
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local kept = p:score(q):topk(29)
function methods:topk(k)
  live(self, "buffer:topk")
  check.integer("buffer:topk: k", k, 0, 2^31 - 1)
  if self.n_dims < 1 or self.n_dims > 2 then
    check.misuse("buffer:topk: wants one or two dimensions (got %s)", tostring(self))
  end
  local scores, message, code = self:read()
  if not scores then return nil, message, code end
  local values = scores.pointer
  if scores.dtype ~= "f32" then
    values = ffi.new("float[?]", math.max(self.n, 1))
    for i = 0, self.n - 1 do values[i] = tonumber(scores.pointer[i]) end
  end
  local n = self.shape[self.n_dims]
  local count = math.min(k, n)
  local rows = self.n_dims == 2 and self.shape[1] or 1
  local ids = array.new("i32", self.n_dims == 2 and {rows, count} or {count}, rows * count)
  for row = 0, rows - 1 do lib.tide_topk(values + row * n, n, k, ids.pointer + row * count) end
  local best
  best, message, code = buf.make(self.ctx, "i32", ids.shape, self.device, "topk")
  if not best then return nil, message, code end
  return best:write(ids)
end

--- What is in it, in numbers. Waits.
-- @treturn[1] table n, n_nan, n_inf, n_zero, min, max, mean, min_at, max_at, bins (means of up to 24 equal
-- runs)
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage print(s:describe().max_at)
function methods:describe()
  local handle, stats = live(self, "buffer:describe"), ffi.new "tide_buf_stats"
  local ok, message, code = check.status(self.ctx, check.allocating(lib.tide_buf_describe, handle, stats))
  if not ok then return nil, message, code end
  local bins = {}
  for i = 1, stats.n_bins do bins[i] = stats.bins[i - 1] end
  return {
    n = tonumber(stats.n), n_nan = tonumber(stats.n_nan), n_inf = tonumber(stats.n_inf),
    n_zero = tonumber(stats.n_zero), min = stats.min, max = stats.max, mean = stats.mean,
    min_at = tonumber(stats.min_at), max_at = tonumber(stats.max_at),
    bins = bins,
  }
end

--- Prints what is in it: shape, extremes, mean, a small picture, some elements. Waits.
-- @treturn buf itself
-- @usage p:score(q):show()
function methods:show()
  print(require("tide.show").buffer(self))
  return self
end

--- Prints its elements as a line over their index. Waits.
-- @tparam ?table options as for plot.line
-- @treturn buf itself
-- @usage p:score(q):plot{title = "score of every block", marks = {[125] = "answer"}}
function methods:plot(options)
  print(require("tide.plot").line(assert(self:read()):flat(), options))
  return self
end

--- The same memory as a DLPack tensor. The taker calls its deleter.
-- @treturn[1] cdata DLManagedTensor *, as void *
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local tensor = k:to_dlpack()
function methods:to_dlpack()
  local tensor = ffi.new "void *[1]"
  local status = lib.tide_buf_to_dlpack(live(self, "buffer:to_dlpack"), tensor)
  local ok, message, code = check.status(self.ctx, status)
  if not ok then return nil, message, code end
  return tensor[0]
end

--- Gives the memory back once the last view of it has closed. Again is fine.
-- @usage b:close()
function methods:close()
  if not buf.is(self) then check.misuse("buffer:close: wants a buffer before the colon") end
  if not self._handle then return end
  lib.tide_buf_close(ffi.gc(self._handle, nil))
  rawset(self, "_handle", nil)
  rawset(self, "_anchor", nil)
end

buf.methods = methods
buf.class = {
  __index = function(b, key)
    if type(key) == "number" then return index(b, key) end
    if key == "shape" then return shape_of_view(b._view) end
    return methods[key]
  end,
  __newindex = function(_, key)
    check.misuse("buffer: cannot set %s; write, fill or copy into it or into a view", check.shown(key))
  end,
  __tostring = function(b)
    local where = b._handle and (b.ctx:closed() and "(context closed)" or b.device) or "(closed)"
    return ("buf %s[%s] %s"):format(b.dtype, table.concat(b.shape, ", "), where)
  end,
}

return buf
