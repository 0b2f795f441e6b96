-- Cases of lowrank_project. The cpu variants sum over d as the reference does: equal bits.

local EPS = 2 ^ -23

return function(t)
  -- o: blocks, size (tokens a block), heads, maps, dim, rank, dtype, and what differs from the plain case
  local function case(family, name, o)
    local pool, y_pool = o.pool or o.blocks, o.y_pool or o.blocks + (o.first or 0)
    local per_block, maps = o.size * o.heads * o.dim, o.maps or o.heads
    local ids, y_ids = o.ids, o.y_ids
    local done = {}
    for b = 0, o.blocks - 1 do
      local from, to = ids and ids[b + 1] or b, y_ids and y_ids[b + 1] or (o.first or 0) + b
      if from >= 0 and from < pool and to >= 0 and to < y_pool then done[to] = true end
    end
    local y_block = o.heads * o.size * o.rank
    return {family = family, name = name, arrays = {
      x = t.random(o.dtype, math.max(pool, 1) * per_block, 31, o.place),
      p = not o.identity and t.random("bf16", maps * o.dim * o.rank, 32) or nil,
      bias = o.bias and t.random("f32", maps * o.rank, 33) or nil,
      y = t.output("bf16", y_pool * y_block, function(i) return done[math.floor(i / y_block)] end),
      written = t.output("u8", y_pool, function(i) return done[i] end),
      x_blocks = ids and t.values("i32", ids), y_blocks = y_ids and t.values("i32", y_ids),
    }, args = {x_block_stride = per_block, x_token_stride = o.heads * o.dim, x_head_stride = o.dim,
      x_dtype = t.dtypes[o.dtype],
      n_blocks = o.blocks, block_size = o.size, n_heads = o.heads, n_maps = maps, head_dim = o.dim,
        rank = o.rank,
      n_x_blocks = pool, n_y_blocks = y_pool, first_y = o.first or 0}}
  end

  local s = t.special
  local cases = {
    -- The shape that is measured, and the ones of the capture in the repository.
    case("regular", "16 tokens x 8 heads, 128 -> 32", {blocks = 5, size = 16, heads = 8, maps = 1, dim = 128,
      rank = 32, dtype = "bf16"}),
    case("regular", "3 heads with maps of their own, 64 -> 16, f16", {blocks = 11, size = 16, heads = 3,
      dim = 64, rank = 16, dtype = "f16"}),
    case("regular", "64 -> 8, f32, bias", {blocks = 3, size = 16, heads = 3, dim = 64, rank = 8,
      dtype = "f32", bias = true}),
    case("regular", "queries: blocks of one token", {blocks = 4, size = 1, heads = 9, maps = 3, dim = 64,
      rank = 32, dtype = "bf16"}),
    case("regular", "identity with bias", {blocks = 4, size = 16, heads = 3, dim = 64, rank = 64,
      dtype = "bf16", identity = true, bias = true}),
    case("regular", "through a block table, out of order", {blocks = 6, size = 4, heads = 2, dim = 32,
      rank = 32, dtype = "bf16", pool = 9,
      y_pool = 8, ids = {8, 0, 3, 3, 1, 7}, y_ids = {0, 7, 2, 1, 5, 4}}),
    -- Sizes that no vector divides, and the largest.
    case("odd", "37 -> 7, 5 tokens", {blocks = 3, size = 5, heads = 3, maps = 1, dim = 37, rank = 7,
      dtype = "bf16", bias = true}),
    case("odd", "256 -> 129, 13 tokens", {blocks = 2, size = 13, heads = 2, dim = 256, rank = 129,
      dtype = "f16"}),
    case("odd", "1 -> 1", {blocks = 2, size = 1, heads = 1, dim = 1, rank = 1, dtype = "f32"}),
    case("odd", "identity of 33", {blocks = 2, size = 3, heads = 2, dim = 33, rank = 33, dtype = "f16",
      identity = true}),
    case("empty", "no blocks", {blocks = 0, size = 16, heads = 2, dim = 32, rank = 8, dtype = "bf16"}),
    -- Ids out of their pools are left out: nothing is read or written for them.
    case("all-invalid", "every id out of range", {blocks = 4, size = 2, heads = 2, dim = 16, rank = 8,
      dtype = "bf16", pool = 3, y_pool = 3,
      ids = {-1, 3, 2, 2147483647}, y_ids = {0, 1, 3, -5}}),
    -- What is not a number stays in its token, and rounding to bf16 keeps it.
    case("all-invalid", "NaN, infinities and the largest number", {blocks = 2, size = 16, heads = 1,
      dim = 16, rank = 16, dtype = "bf16",
      place = {[0] = s.bf16.nan, [17] = s.bf16.inf, [40] = s.bf16.minus_inf, [50] = s.bf16.max,
        [64] = s.bf16.minus_zero, [81] = s.bf16.tiny}}),
    case("all-invalid", "the largest f32 rounds to infinity", {blocks = 1, size = 2, heads = 1, dim = 16,
      rank = 16, dtype = "f32",
      identity = true, place = {[3] = s.f32.max, [7] = s.f32.nan, [9] = s.f32.tiny}}),
  }

  -- Blocks that begin at element 2^32 and more on both sides.
  cases[#cases + 1] = {family = "huge", name = "blocks beyond 2^32 values", make = function()
    local at, y_at = 9000000 * 512, 9000000 * 256
    return {family = "huge", name = "", arrays = {
      x = t.sparse("bf16", at + 512, {[0] = t.random("bf16", 512, 34), [at] = t.random("bf16", 512, 35)}),
      p = t.random("bf16", 32 * 16, 36), y = t.sparse("bf16", y_at + 256, {[0] = 256, [y_at] = 256}),
      x_blocks = t.values("i32", {9000000, 0}), y_blocks = t.values("i32", {9000000, 0}),
    }, args = {x_block_stride = 512, x_token_stride = 32, x_head_stride = 32, x_dtype = t.dtypes.bf16,
      n_blocks = 2, block_size = 16,
      n_heads = 1, n_maps = 1, head_dim = 32, rank = 16, n_x_blocks = 9000001, n_y_blocks = 9000001}}
  end}

  -- head_dim sums round, each within EPS of the sizes added (twice: a matrix unit may truncate); then one
  -- bf16 step, which is
  -- at most 2^-7 of the number.
  local function bounds(c)
    local a = c.args
    local terms = t.largest(c.arrays.x) * (c.arrays.p and t.largest(c.arrays.p) * a.head_dim or 1)
    return {y = function(_, want) return 2 * EPS * a.head_dim * terms + math.abs(want) * 2 ^ -7 end,
      written = function() return 0 end}
  end

  return {cases = cases, bounds = bounds, ordered = function() return true end}
end
