-- Cases of summarize_blocks. The cpu variants sum in token order as the reference does: equal bits.

local EPS = 2 ^ -23

return function(t)
  -- o: blocks, size, heads, dim, dtype, minmax, and what differs from the plain case
  local function case(family, name, o)
    local pool, y_pool = o.pool or o.blocks, o.y_pool or o.blocks + (o.first or 0)
    local per_block, entries, done = o.size * o.heads * o.dim, o.minmax and 2 or 1, {}
    for b = 0, o.blocks - 1 do
      local from, to = o.ids and o.ids[b + 1] or b, o.y_ids and o.y_ids[b + 1] or (o.first or 0) + b
      local holds = not o.x_written or o.x_written[from + 1] == 1
      if from >= 0 and from < pool and to >= 0 and to < y_pool and holds then done[to] = true end
    end
    local y_block = o.heads * entries * o.dim
    return {family = family, name = name, arrays = {
      x = t.random(o.dtype, math.max(pool, 1) * per_block, 41, o.place),
      y = t.output("bf16", y_pool * y_block, function(i) return done[math.floor(i / y_block)] end),
      written = t.output("u8", y_pool, function(i) return done[i] end),
      x_written = o.x_written and t.values("u8", o.x_written),
      x_blocks = o.ids and t.values("i32", o.ids), y_blocks = o.y_ids and t.values("i32", o.y_ids),
    }, args = {x_block_stride = per_block, x_token_stride = o.heads * o.dim, x_head_stride = o.dim,
      x_dtype = t.dtypes[o.dtype],
      n_blocks = o.blocks, block_size = o.size, n_heads = o.heads, dim = o.dim, minmax = o.minmax and 1 or 0,
        n_x_blocks = pool,
      n_y_blocks = y_pool, first_y = o.first or 0}}
  end

  local cases, s = {}, t.special
  local function both(family, name, o)
    cases[#cases + 1] = case(family, "mean, " .. name, o)
    o.minmax = true
    cases[#cases + 1] = case(family, "bounds, " .. name, o)
  end

  both("regular", "16 tokens x 8 heads x 128", {blocks = 5, size = 16, heads = 8, dim = 128, dtype = "bf16"})
  both("regular", "3 heads x 64, f16", {blocks = 7, size = 16, heads = 3, dim = 64, dtype = "f16"})
  both("regular", "f32 through a block table", {blocks = 4, size = 4, heads = 2, dim = 32, dtype = "f32",
    pool = 9, y_pool = 6,
    ids = {8, 0, 3, 3}, y_ids = {0, 5, 2, 1}})
  both("odd", "1 token x 1 head x 1", {blocks = 3, size = 1, heads = 1, dim = 1, dtype = "f32"})
  both("odd", "5 tokens x 3 heads x 37", {blocks = 3, size = 5, heads = 3, dim = 37, dtype = "bf16",
    first = 2})
  both("odd", "17 tokens x 300", {blocks = 2, size = 17, heads = 1, dim = 300, dtype = "f16"})
  both("empty", "no blocks", {blocks = 0, size = 16, heads = 2, dim = 32, dtype = "bf16"})
  both("all-invalid", "every id out of range", {blocks = 4, size = 2, heads = 2, dim = 16, dtype = "bf16",
    pool = 3, y_pool = 3,
    ids = {-1, 3, 2, 2147483647}, y_ids = {0, 1, 3, -5}})
  both("all-invalid", "a source that holds one of its blocks", {blocks = 3, size = 2, heads = 2, dim = 16,
    dtype = "bf16",
    x_written = {0, 1, 0}})
  -- Dimension 0 is NaN in every token; 1 in the first, 2 in the last; 3 and 4 reach the infinities.
  both("all-invalid", "NaN and infinities", {blocks = 1, size = 3, heads = 1, dim = 16, dtype = "bf16",
    place = {
    [0] = s.bf16.nan, [16] = s.bf16.nan, [32] = s.bf16.nan, [1] = s.bf16.nan, [34] = s.bf16.nan,
      [3] = s.bf16.inf,
    [20] = s.bf16.minus_inf, [5] = s.bf16.max, [21] = s.bf16.max, [37] = s.bf16.max}})

  cases[#cases + 1] = {family = "huge", name = "blocks beyond 2^32 values", make = function()
    local at, y_at = 9000000 * 512, 9000000 * 256
    return {family = "huge", name = "", arrays = {
      x = t.sparse("bf16", at + 512, {[0] = t.random("bf16", 512, 44), [at] = t.random("bf16", 512, 45)}),
      y = t.sparse("bf16", y_at + 256, {[0] = 256, [y_at] = 256}),
      x_blocks = t.values("i32", {9000000, 0}), y_blocks = t.values("i32", {9000000, 0}),
    }, args = {x_block_stride = 512, x_token_stride = 256, x_head_stride = 256, x_dtype = t.dtypes.bf16,
      n_blocks = 2, block_size = 2,
      n_heads = 1, dim = 256, n_x_blocks = 9000001, n_y_blocks = 9000001}}
  end}

  -- A mean: block_size sums round, each within EPS of the sizes added; then one bf16 step. Bounds are
  -- inputs, rounded.
  local function bounds(c)
    local a = c.args
    local sum = a.minmax == 1 and 0 or EPS * a.block_size * t.largest(c.arrays.x)
    return {y = function(_, want) return sum + math.abs(want) * 2 ^ -7 end, written = function() return 0 end}
  end

  return {cases = cases, bounds = bounds, ordered = function() return true end}
end
