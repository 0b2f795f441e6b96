-- Cases of copy: one rounding that every variant does alike, so every variant is exact.

return function(t)
  -- o: from, to (dtypes), shape, strides of either side (nil: contiguous), and what differs from the plain
  -- case
  local function contiguous(shape)
    local stride, n = {}, 1
    for i = #shape, 1, -1 do stride[i], n = n, n * shape[i] end
    return stride, n
  end

  local function extent(shape, stride)
    local last = 0
    for i = 1, #shape do
      if shape[i] == 0 then return 0 end
      last = last + (shape[i] - 1) * stride[i]
    end
    return last + 1
  end

  local function owned(shape, stride)
    local found = {[0] = true}
    for i = 1, #shape do
      local wider = {}
      for at in pairs(found) do
        for j = 0, shape[i] - 1 do wider[at + j * stride[i]] = true end
      end
      found = wider
    end
    return function(i) return found[i] end
  end

  local function case(family, name, o)
    local plain = contiguous(o.shape)
    local dst, src = o.dst or plain, o.src or plain
    return {family = family, name = name, arrays = {
      src = t.random(o.from, extent(o.shape, src), 71, o.place, o.range or 100),
      dst = t.output(o.to, extent(o.shape, dst), owned(o.shape, dst)),
    }, args = {dst_dtype = t.dtypes[o.to], src_dtype = t.dtypes[o.from], n_dims = #o.shape},
      lists = {shape = o.shape, dst_stride = dst, src_stride = src}}
  end

  local cases = {}
  local function add(...) cases[#cases + 1] = case(...) end
  add("regular", "bf16, contiguous", {from = "bf16", to = "bf16", shape = {4, 16, 32}})
  add("regular", "f32, transposed", {from = "f32", to = "f32", shape = {7, 65}, src = {1, 7}})
  add("regular", "rows that lie apart", {from = "f16", to = "f16", shape = {9, 40}, src = {64, 1}, dst = {48,
    1}})
  add("regular", "a fill", {from = "f32", to = "bf16", shape = {3, 5, 33}, src = {0, 0, 0}})
  -- An element that stands in the struct: f32 1.5.
  local inside = case("regular", "a fill of the struct's element", {from = "f32", to = "f16", shape = {5, 35},
    src = {0, 0}})
  inside.arrays.src, inside.args.element = nil, 0x3fc00000
  cases[#cases + 1] = inside
  for _, pair in ipairs {{"f32", "bf16"}, {"f32", "f16"}, {"f32", "f8e4m3"}, {"bf16", "f32"}, {"f16", "f32"},
    {"f8e4m3", "f32"},
    {"f8e4m3", "bf16"}, {"i32", "f32"}, {"f32", "i32"}, {"u8", "i64"}, {"i64", "u8"}, {"u32", "f16"}} do
    add("regular", ("%s to %s"):format(pair[1], pair[2]), {from = pair[1], to = pair[2], shape = {300}})
  end
  add("odd", "a scalar", {from = "f32", to = "f16", shape = {}})
  add("odd", "five dimensions, every stride its own", {from = "u8", to = "u8", shape = {2, 3, 2, 3, 2},
    src = {1, 2, 6, 12, 36},
    dst = {40, 13, 6, 2, 1}})
  add("odd", "every other element", {from = "bf16", to = "f32", shape = {51}, src = {2}, dst = {3}})
  add("odd", "one wide of 64-bit integers", {from = "i64", to = "i64", shape = {1, 1, 7}})
  add("empty", "an extent of 0", {from = "f32", to = "f32", shape = {3, 0, 2}})
  local s = t.special
  for _, to in ipairs {"f16", "bf16", "f8e4m3", "i32", "u32", "i64", "u8", "f32"} do
    add("all-invalid", "what no other dtype holds, f32 to " .. to, {from = "f32", to = to, shape = {40},
      place = {[0] = s.f32.nan,
      [1] = s.f32.inf, [2] = s.f32.minus_inf, [3] = s.f32.minus_zero, [4] = s.f32.max, [5] = s.f32.tiny,
        [6] = 0xff7fffff,
      [7] = 0x33000000, [8] = 0x477fefff, [9] = 0x477ff000, [10] = 0x43e7ffff, [11] = 0x43e80000,
        [12] = 0x3f808000}})
  end

  -- Element 1 of the first dimension lies beyond 2^31 on both sides.
  cases[#cases + 1] = {family = "huge", name = "strides beyond 2^31 elements", make = function()
    local far = 2 ^ 31 + 1000
    local c = case("huge", "", {from = "bf16", to = "bf16", shape = {1, 16}})
    c.arrays.src = t.sparse("bf16", far + 16, {[0] = t.random("bf16", 16, 72), [far] = t.random("bf16", 16,
      73)})
    c.arrays.dst = t.sparse("bf16", far + 16, {[0] = 16, [far] = 16})
    c.lists = {shape = {2, 16}, dst_stride = {far, 1}, src_stride = {far, 1}}
    return c
  end}

  return {cases = cases, bounds = function() return setmetatable({},
    {__index = function() return function() return 0 end end}) end,
    ordered = function() return false end}
end
