--- Host arrays: what reading a buffer gives, and what writing makes of Lua lists. They count from 0, and
-- `a[i] = x` sets an element.
--
-- Fields: n (elements), shape, dtype, pointer (cdata, to the elements in row-major order). An i64 beyond 2^53
-- is exact through pointer only.
-- @module tide.array

local bit = require "bit"
local ffi = require "ffi"
local lib = require("tide.cdef").lib
local check = require "tide.check"

local array = {}
local methods = {}
local class = {}

array.dtype_names = {"f32", "f16", "bf16", "f8e4m3", "i32", "u32", "i64", "u8"}

-- number: the id in tide.h; bytes: of an element; ctype: of its values on the host. What LuaJIT has no type
-- for is read and written as f32.
array.dtypes = {
  f32 = {number = lib.TIDE_F32, bytes = 4, ctype = "float"}, f16 = {number = lib.TIDE_F16, bytes = 2},
  bf16 = {number = lib.TIDE_BF16, bytes = 2}, f8e4m3 = {number = lib.TIDE_F8E4M3, bytes = 1},
  i32 = {number = lib.TIDE_I32, bytes = 4, ctype = "int32_t"},
  u32 = {number = lib.TIDE_U32, bytes = 4, ctype = "uint32_t"},
  i64 = {number = lib.TIDE_I64, bytes = 8, ctype = "int64_t"},
  u8 = {number = lib.TIDE_U8, bytes = 1, ctype = "uint8_t"},
}
array.dtype_of_number = {}
for name, dtype in pairs(array.dtypes) do
  dtype.name = name
  array.dtype_of_number[dtype.number] = name
  if dtype.ctype then
    -- Text, no "$": busted remembers a type by its text alone.
    dtype.pointer, dtype.array = ffi.typeof(dtype.ctype .. " *"), ffi.typeof(dtype.ctype .. "[?]")
  end
end

local words = ffi.typeof "uint32_t *"
local nan = 0 / 0

-- A float that is NaN by its bits is never made a Lua value: LuaJIT keeps types in the bits of NaN, so that
-- a stored pattern such as 0xffffffff would come out as nil, and others as worse.
local function element_of(a, i)
  if a.dtype == "f32" and bit.band(ffi.cast(words, a.pointer)[i], 0x7fffffff) > 0x7f800000 then return nan end
  return tonumber(a.pointer[i])
end

local ranges = {i32 = {-2^31, 2^31 - 1}, u32 = {0, 2^32 - 1}, u8 = {0, 255}, i64 = {-2^53, 2^53}}

local function element(what, v, dtype)
  local range = ranges[dtype]
  if range then return check.integer(("%s: element of %s"):format(what, dtype), v, range[1], range[2]) end
  if type(v) ~= "number" then check.misuse("%s: wants numbers (got %s)", what, check.shown(v)) end
  return v
end

function class.__index(a, i)
  if type(i) == "number" then
    if not (i >= 0 and i < a._n) then
      check.misuse("array: index out of range (got %s, want 0..%d)", tostring(i), a._n - 1)
    end
    return element_of(a, i)
  end
  return methods[i]
end

function class.__newindex(a, i, v)
  if type(i) ~= "number" then check.misuse("array: cannot set %s; set elements, from 0", check.shown(i)) end
  if not (i % 1 == 0 and i >= 0 and i < a._n) then
    check.misuse("array: index out of range (got %s, want 0..%d)", tostring(i), a._n - 1)
  end
  a.pointer[i] = element("array", v, a.dtype)
end

function class.__tostring(a)
  return ("array %s[%s] host"):format(a.dtype, table.concat(a.shape, ", "))
end

--- The values as one Lua list, which counts from 1.
-- @treturn {number,...}
-- @usage print(table.concat(s:read():flat(), " "))
function methods:flat()
  local list = {}
  for i = 1, self._n do list[i] = element_of(self, i - 1) end
  return list
end

--- The values as nested Lua lists, which count from 1.
-- @treturn table a list for each dimension; the number itself when there is none
-- @usage for i, score in ipairs(s:read():totable()) do print(i - 1, score) end
function methods:totable()
  local at = 0
  local function level(d)
    if d > #self.shape then
      at = at + 1
      return self[at - 1]
    end
    local list = {}
    for i = 1, self.shape[d] do list[i] = level(d + 1) end
    return list
  end
  return level(1)
end

--- Raises when so many bytes are more than one C array of LuaJIT may have.
-- @tparam string what the call, as messages name it
-- @tparam number bytes
-- @usage array.want_room("buffer:bytes", n * 2)
function array.want_room(what, bytes)
  if bytes >= 2^31 then
    check.misuse("%s: too large for one host array (got %.0f bytes, want below 2^31); slice first", what,
      bytes)
  end
end

--- A new array; its contents are zeros.
-- @tparam string dtype one that has a C type: f32, i32, u32, i64, u8
-- @tparam table shape
-- @tparam number n the product of shape
-- @treturn array
-- @usage local ids = array.new("i32", {2, 3}, 6)
function array.new(dtype, shape, n)
  local known = array.dtypes[dtype]
  array.want_room("array", n * known.bytes)
  local memory = known.array(math.max(n, 1))
  return setmetatable({n = n, dtype = dtype, shape = {unpack(shape)},
    pointer = ffi.cast(known.pointer, memory), _n = n, _memory = memory}, class)
end

--- Shape of a nested list, by its first elements.
-- @tparam table values
-- @treturn table shape
-- @usage array.shape_of{{1, 2, 3}, {4, 5, 6}} --> {2, 3}
function array.shape_of(values)
  if getmetatable(values) == class then return values.shape end
  local shape = {}
  while type(values) == "table" and #shape <= 5 do -- one more than there may be; a list may hold itself
    shape[#shape + 1] = #values
    values = values[1]
  end
  return shape
end

-- Fills an array from lists nested as deep as shape is long, each of its extent.
local function fill(what, to, values, shape)
  local at = 0
  local function level(v, d)
    if d > #shape then
      to.pointer[at] = element(what, v, to.dtype)
      at = at + 1
      return
    end
    if type(v) ~= "table" or #v ~= shape[d] then
      check.misuse("%s: a list of the wrong length in dimension %d (got %s, want %d)", what, d - 1,
        type(v) == "table" and #v or check.shown(v), shape[d])
    end
    for i = 1, #v do level(v[i], d + 1) end
  end
  level(values, 1)
end

--- The values as an array of a shape, or misuse.
-- @tparam string what the call, as messages name it
-- @tparam number|table values a list (flat, or nested as shape is), an array, or one number for no dimensions
-- @tparam string dtype one that has a C type
-- @tparam table like shape, n: what is wanted
-- @treturn array values itself where it is one of this dtype
-- @usage local source = array.of("buffer:write", {1, 2, 3}, "f32", b)
function array.of(what, values, dtype, like)
  if getmetatable(values) == class then
    if values._n ~= like.n then
      check.misuse("%s: an array of %d elements (want %d)", what, values._n, like.n)
    end
    if values.dtype == dtype then return values end
    values = values:flat()
  end
  if type(values) == "number" and #like.shape == 0 then values = {values} end
  check.type(what .. ": values", values, "table")
  local to = array.new(dtype, like.shape, like.n)
  local flat = #values == like.n and type(values[1]) ~= "table"
  fill(what, to, values, flat and {like.n} or like.shape)
  return to
end

return array
