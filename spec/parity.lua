--- Runs a kernel's case on any variant and device, on memory whose every byte is accounted for.
--
-- A case is a table: family, name, args (numbers of the args struct), arrays (pointers of it), and what it
-- promises of its
-- outputs. Inputs lie between bands of 0xFF (a NaN in every float dtype, -1 in every integer), outputs
-- begin as 0xAB and lie
-- between bands of 0xAB: what a kernel reads or writes beside its array is seen.

local ffi = require "ffi"
local cdef = require "tide.cdef"
local C = cdef.lib

local parity = {}

local ctypes = {f32 = "uint32_t", f16 = "uint16_t", bf16 = "uint16_t", f8e4m3 = "uint8_t", i32 = "int32_t",
  u32 = "uint32_t",
  i64 = "int64_t", u8 = "uint8_t"}
parity.dtypes = {f32 = C.TIDE_F32, f16 = C.TIDE_F16, bf16 = C.TIDE_BF16, f8e4m3 = C.TIDE_F8E4M3,
  i32 = C.TIDE_I32,
  u32 = C.TIDE_U32, i64 = C.TIDE_I64, u8 = C.TIDE_U8}
local is_float = {f32 = true, f16 = true, bf16 = true, f8e4m3 = true}
local GUARD = 256 -- bytes, on either side

---------------------------------------------------------------------------------------------------- values

local word = ffi.new("union { uint32_t bits; float value; }")

local function f32(bits)
  word.bits = bits
  return word.value
end

-- Sign, exponent field, mantissa field of a small float to its value; the largest exponent of f16 is special.
local function small_float(negative, exponent, mantissa, bias, width)
  local size = exponent == 0 and mantissa * 2 ^ (1 - bias - width)
    or (1 + mantissa * 2 ^ -width) * 2 ^ (exponent - bias)
  return negative and -size or size
end

--- The number that a stored pattern means.
function parity.decode(dtype, x)
  x = tonumber(x)
  if dtype == "f32" then return f32(x) end
  if dtype == "bf16" then return f32(x * 65536) end
  if dtype == "f16" then
    local exponent, mantissa = bit.band(bit.rshift(x, 10), 31), bit.band(x, 1023)
    if exponent == 31 then return mantissa > 0 and 0 / 0 or x >= 0x8000 and -math.huge or math.huge end
    return small_float(x >= 0x8000, exponent, mantissa, 15, 10)
  end
  if dtype == "f8e4m3" then
    if bit.band(x, 127) == 127 then return 0 / 0 end
    return small_float(x >= 128, bit.band(bit.rshift(x, 3), 15), bit.band(x, 7), 7, 3)
  end
  return x
end

--- Patterns worth placing: NaN, the infinities, zeros of both signs, one, the largest and the smallest
-- number.
parity.special = {
  f32 = {nan = 0x7fc00000, inf = 0x7f800000, minus_inf = 0xff800000, minus_zero = 0x80000000,
    one = 0x3f800000,
    max = 0x7f7fffff, tiny = 1},
  bf16 = {nan = 0x7fc0, inf = 0x7f80, minus_inf = 0xff80, minus_zero = 0x8000, one = 0x3f80, max = 0x7f7f,
    tiny = 1},
  f16 = {nan = 0x7e00, inf = 0x7c00, minus_inf = 0xfc00, minus_zero = 0x8000, one = 0x3c00, max = 0x7bff,
    tiny = 1},
  f8e4m3 = {nan = 0x7f, minus_zero = 0x80, one = 0x38, max = 0x7e, tiny = 1},
}

-- Sign, exponent and mantissa fields: sizes from 1/128 to 2 (f8: to 2), every mantissa.
local fields = {f32 = {23, 8, 120, 8}, bf16 = {7, 8, 120, 8}, f16 = {10, 5, 8, 8}, f8e4m3 = {3, 4, 0, 8}}

local function generator(seed)
  local state = seed
  return function(n) -- 0 .. n-1
    state = (state * 16807) % 2147483647
    return math.floor(state / 2147483647 * n)
  end
end
parity.generator = generator

---------------------------------------------------------------------------------------------------- arrays

local function array(dtype, n)
  return {dtype = dtype, n = n, pieces = {{at = 0, n = n, data = ffi.new(ctypes[dtype] .. "[?]", math.max(n,
    1))}}}
end

--- An input of listed values (patterns of floats).
function parity.values(dtype, list)
  local a = array(dtype, #list)
  for i, x in ipairs(list) do a.pieces[1].data[i - 1] = x end
  return a
end

--- An input of random patterns; place[i] = pattern puts special ones. Integers: 0 .. range-1.
function parity.random(dtype, n, seed, place, range)
  local a, random, f = array(dtype, n), generator(seed), fields[dtype]
  for i = 0, n - 1 do
    if f then
      local sign, exponent, mantissa = random(2), f[3] + random(f[4]), random(2 ^ f[1])
      a.pieces[1].data[i] = sign * 2 ^ (f[1] + f[2]) + exponent * 2 ^ f[1] + mantissa
    else
      a.pieces[1].data[i] = random(range)
    end
  end
  for i, pattern in pairs(place or {}) do a.pieces[1].data[i] = pattern end
  return a
end

--- An output. owned(i) tells which elements the kernel must write; nil: all.
function parity.output(dtype, n, owned)
  local a = array(dtype, n)
  a.output, a.owned = true, owned or function() return true end
  return a
end

--- An array of n elements of which only pieces exist: {[at] = array} for an input, {[at] = count} for an
-- output.
function parity.sparse(dtype, n, pieces)
  local a = {dtype = dtype, n = n, pieces = {}}
  for at, piece in pairs(pieces) do
    if type(piece) == "number" then
      a.output, a.owned = true, function() return true end
      piece = array(dtype, piece)
    end
    a.pieces[#a.pieces + 1] = {at = at, n = piece.n, data = piece.pieces[1].data}
  end
  return a
end

--- The number at an element of an input.
function parity.at(a, i)
  for _, piece in ipairs(a.pieces) do
    if i >= piece.at and i < piece.at + piece.n then return parity.decode(a.dtype,
      piece.data[i - piece.at]) end
  end
  error(("no element %d of %d"):format(i, a.n), 2)
end

--- Largest size of an input's finite elements.
function parity.largest(a)
  local most = 0
  for _, piece in ipairs(a.pieces) do
    for i = 0, piece.n - 1 do
      local x = math.abs(parity.decode(a.dtype, piece.data[i]))
      if x > most and x < math.huge then most = x end
    end
  end
  return most
end

---------------------------------------------------------------------------------------------------- memory

local function check(ctx, status) return status == 0 or error(ffi.string(C.tide_errmsg(ctx)), 0) end

-- Bytes first .. first+n-1 of a buffer written from, or read into, host memory.
local function transfer(ctx, buf, first, n, host, reads)
  if n == 0 then return end
  local slice = ffi.new "tide_buf *[1]"
  check(ctx, C.tide_buf_slice(buf, 0, first, n, slice))
  local status = reads and C.tide_buf_read(slice[0], host, n) or C.tide_buf_write(slice[0], host, n)
  C.tide_buf_close(slice[0])
  check(ctx, status)
end

local function element_bytes(a) return ffi.sizeof(ctypes[a.dtype]) end

-- The array's bytes on the device, bands around every piece; answers the buffer and the address of element 0.
local function place(ctx, a, scratch_bytes)
  local bytes = scratch_bytes or a.n * element_bytes(a)
  local settings = ffi.new("tide_buf_settings", {dtype = C.TIDE_U8, n_dims = 1, label = "spec"})
  settings.shape[0] = bytes + 2 * GUARD
  local out, view = ffi.new "tide_buf *[1]", ffi.new "tide_view"
  check(ctx, C.tide_buf_new(ctx, settings, out))
  local buf = ffi.gc(out[0], C.tide_buf_close)
  for _, piece in ipairs(a.pieces) do
    local n = scratch_bytes or piece.n * element_bytes(a)
    local host = ffi.new("uint8_t[?]", n + 2 * GUARD)
    ffi.fill(host, n + 2 * GUARD, a.output and 0xab or 0xff)
    if not a.output then ffi.copy(host + GUARD, piece.data, n) end
    transfer(ctx, buf, piece.at * element_bytes(a), n + 2 * GUARD, host)
  end
  check(ctx, C.tide_buf_view(buf, view))
  return buf, ffi.cast("uint8_t *", view.data) + GUARD
end

-- What the kernel left: per piece its elements; a changed byte in a band is an error.
local function collect(ctx, a, buf)
  local pieces = {}
  for k, piece in ipairs(a.pieces) do
    local n = piece.n * element_bytes(a)
    local host = ffi.new("uint8_t[?]", n + 2 * GUARD)
    transfer(ctx, buf, piece.at * element_bytes(a), n + 2 * GUARD, host, true)
    for i = 0, GUARD - 1 do
      if host[i] ~= 0xab then error(("wrote %d bytes before its output"):format(GUARD - i), 0) end
      if host[GUARD + n + i] ~= 0xab then error(("wrote %d bytes behind its output"):format(i + 1), 0) end
    end
    pieces[k] = ffi.new(ctypes[a.dtype] .. "[?]", math.max(piece.n, 1))
    ffi.copy(pieces[k], host + GUARD, n)
  end
  return pieces
end

---------------------------------------------------------------------------------------------------- runs

local function run(ctx, kernel, variant, case, kept)
  local args = cdef.kernel(kernel)()
  local size, outputs = ffi.sizeof(args), {}
  for name, value in pairs(case.args) do args[name] = value end
  for name, values in pairs(case.lists or {}) do
    for i, value in ipairs(values) do args[name][i - 1] = value end
  end
  for name, a in pairs(case.arrays) do
    local buf, address = place(ctx, a)
    kept[name] = buf
    args[name] = ffi.cast("void *", address)
  end
  local scratch = tonumber(C.tide_kernel_scratch(kernel, args, size))
  if scratch > 0 then
    local buf, address = place(ctx, {dtype = "f32", output = true, pieces = {{at = 0}}}, scratch * 4)
    kept.scratch = buf
    args.scratch = ffi.cast("void *", address)
  end
  local status = C.tide_kernel_run(ctx, 0, kernel, variant, args, size, nil)
  if status == C.TIDE_EUNSUPPORTED then return nil, ffi.string(C.tide_errmsg(ctx)) end
  check(ctx, status)
  for name, a in pairs(case.arrays) do
    if a.output then outputs[name] = collect(ctx, a, kept[name]) end
  end
  return outputs
end

--- Runs one variant; answers {name of output = pieces}, or nil and the refusal. Its memory is given back at
-- once: a huge case fits a device once, not twice.
function parity.run(ctx, kernel, variant, case)
  local kept = {}
  local ok, outputs, why = pcall(run, ctx, kernel, variant, case, kept)
  for _, buf in pairs(kept) do C.tide_buf_close(ffi.gc(buf, nil)) end
  if not ok then error(outputs, 0) end
  return outputs, why
end

-- Special values first: NaN for NaN, infinities and untouched patterns as they are; then the bound.
local function difference(a, got, want, owned, bound, i)
  if not owned or not is_float[a.dtype] then return got ~= want and math.huge or 0 end
  local g, w = parity.decode(a.dtype, got), parity.decode(a.dtype, want)
  if w ~= w or g ~= g then return (w == w or g == g) and math.huge or 0 end
  if g == w then return 0 end
  if math.abs(w) == math.huge or math.abs(g) == math.huge then return math.huge end
  return math.abs(g - w) / bound(i, w)
end

--- Compares outputs with the reference's. bound(i, want) is the largest error allowed of element i.
-- Answers nil, or where it is worst: {output, index, got, want, ratio}.
function parity.worst(case, got, want, bounds)
  local worst
  for name, a in pairs(case.arrays) do
    for k, piece in ipairs(a.output and a.pieces or {}) do
      for j = 0, piece.n - 1 do
        local i = piece.at + j
        local ratio = difference(a, got[name][k][j], want[name][k][j], a.owned(i), bounds[name], i)
        local fine = ratio <= 1 -- NaN is not
        if not fine and not (worst and worst.ratio >= ratio) then
          worst = {output = name, index = i, ratio = ratio, got = parity.decode(a.dtype, got[name][k][j]),
            want = parity.decode(a.dtype, want[name][k][j])}
        end
      end
    end
  end
  return worst
end

--- Every element that an output owns has been written (a byte may happen to look untouched), and no other.
function parity.untouched(case, outputs)
  for name, a in pairs(case.arrays) do
    local poison = a.output and ffi.new(ctypes[a.dtype] .. "[1]")
    if poison then ffi.fill(poison, element_bytes(a), 0xab) end
    for k, piece in ipairs(a.output and a.pieces or {}) do
      for j = 0, piece.n - 1 do
        local owned, same = a.owned(piece.at + j), outputs[name][k][j] == poison[0]
        if owned and same and element_bytes(a) > 1 then return ("%s[%d] was not written"):format(name,
          piece.at + j) end
        if not owned and not same then return ("%s[%d] was written"):format(name, piece.at + j) end
      end
    end
  end
end

return parity
