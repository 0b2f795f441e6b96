-- Cases of score_blocks. The cpu variants add the products of a lane in the reference's order, but the mass
-- exponentiates
-- by a polynomial: only the max is held to the bit.

local EPS = 2 ^ -23

return function(t)
  local special = t.special.bf16

  -- o: rows, hq, hk, rank, entries, pool, blocks, and what differs from the plain case
  local function case(family, name, o)
    local rows, scores_stride = o.rows or 1, o.blocks + 3
    local arrays = {
      q = t.random("bf16", rows * o.hq * o.rank, 11, o.q_place),
      keys = t.random("bf16", o.pool * o.hk * o.entries * o.rank, 12, o.keys_place),
      scores = t.output("f32", rows * scores_stride, function(i) return i % scores_stride < o.blocks end),
      written = o.written and t.values("u8", o.written),
      lengths = o.lengths and t.values("i32", o.lengths),
      blocks = o.ids and t.values("i32", o.ids),
    }
    return {family = family, name = name, arrays = arrays, bound = o.bound, refused = o.refused, args = {
      n_rows = rows, n_q_heads = o.hq, n_kv_heads = o.hk, rank = o.rank, n_entries = o.entries,
        n_pool = o.pool,
      n_blocks = o.blocks, first_block = o.first or 0, minmax = o.minmax and 1 or 0, mass = o.mass and 1 or 0,
      scale = o.scale or 0.125, scores_stride = scores_stride, blocks_stride = o.ids_stride or 0}}
  end

  local cases = {}
  local function both(family, name, o)
    cases[#cases + 1] = case(family, name .. ", max", o)
    o.mass = true
    cases[#cases + 1] = case(family, name .. ", mass", o)
  end

  local function ids(n, seed, pool)
    local list, random = {}, t.generator(seed)
    for i = 1, n do list[i] = random(pool + 2) - 1 end -- -1 and pool are no blocks
    return list
  end

  -- The shape that is measured, and the ones of the capture in the repository.
  both("regular", "32/8 heads, rank 32, 16 tokens", {hq = 32, hk = 8, rank = 32, entries = 16, pool = 40,
    blocks = 40})
  both("regular", "9/3 heads, rank 16, 16 tokens", {hq = 9, hk = 3, rank = 16, entries = 16, pool = 37,
    blocks = 37})
  both("regular", "9/3 heads, mean keys", {hq = 9, hk = 3, rank = 64, entries = 1, pool = 70, blocks = 70})
  both("regular", "9/3 heads, bounds", {hq = 9, hk = 3, rank = 64, entries = 2, minmax = true, pool = 70,
    blocks = 70})
  both("regular", "rows with lists of their own", {rows = 3, hq = 8, hk = 2, rank = 32, entries = 16,
    pool = 30, blocks = 20,
    ids = ids(60, 5, 30), ids_stride = 20, lengths = {20, 7, 0}})

  -- Sizes that no vector divides: ranks odd and beyond a tile, groups of 1, 5 and 7, blocks longer and
  -- shorter than a tile.
  both("odd", "rank 7, 3 tokens, group 5", {hq = 5, hk = 1, rank = 7, entries = 3, pool = 23, blocks = 23})
  both("odd", "rank 33, 37 tokens, group 7", {hq = 14, hk = 2, rank = 33, entries = 37, pool = 9, blocks = 9})
  both("odd", "rank 130, 5 tokens, group 1", {hq = 3, hk = 3, rank = 130, entries = 5, pool = 11,
    blocks = 11})
  both("odd", "rank 1, one block", {hq = 1, hk = 1, rank = 1, entries = 1, pool = 1, blocks = 1})
  both("odd", "bounds of 9 dimensions", {hq = 6, hk = 2, rank = 9, entries = 2, minmax = true, pool = 35,
    blocks = 35})
  both("odd", "a range that leaves the pool", {hq = 4, hk = 2, rank = 8, entries = 8, pool = 20, blocks = 30,
    first = -4})
  -- More heads, or longer queries, than the vector bodies hold on their stack.
  both("odd", "300 heads", {hq = 300, hk = 3, rank = 4, entries = 2, pool = 3, blocks = 3,
    refused = {v3 = true, v4 = true}})

  -- Engines ask for nothing often enough: no row, no block, no pool.
  both("empty", "no blocks", {hq = 4, hk = 2, rank = 8, entries = 4, pool = 5, blocks = 0})
  both("empty", "no rows", {rows = 0, hq = 4, hk = 2, rank = 8, entries = 4, pool = 5, blocks = 5})
  both("empty", "no pool", {hq = 4, hk = 2, rank = 8, entries = 4, pool = 0, blocks = 5})

  -- What is not valid is not read, and what is not a number never wins.
  both("all-invalid", "no block written", {hq = 4, hk = 2, rank = 8, entries = 4, pool = 6, blocks = 6,
    written = {0, 0, 0, 0, 0, 0}})
  both("all-invalid", "some written, ids out of range", {hq = 4, hk = 2, rank = 8, entries = 4, pool = 6,
    blocks = 6,
    written = {0, 1, 0, 1, 1, 0}, ids = {5, 4, -7, 2147483647, 1, 3}})
  local all_nan, q_nan = {}, {}
  for i = 0, 4 * 16 - 1 do all_nan[i] = special.nan end
  for i = 0, 31 do q_nan[i] = special.nan end
  both("all-invalid", "a block of NaN beside others", {hq = 4, hk = 2, rank = 8, entries = 4, pool = 6,
    blocks = 6,
    keys_place = all_nan})
  both("all-invalid", "a query of NaN", {hq = 4, hk = 2, rank = 8, entries = 4, pool = 6, blocks = 6,
    q_place = q_nan})
  both("all-invalid", "NaN and infinities among keys", {hq = 4, hk = 1, rank = 8, entries = 16, pool = 6,
    blocks = 6,
    keys_place = {[3] = special.nan, [140] = special.inf, [300] = special.minus_inf,
      [400] = special.minus_zero}})
  both("all-invalid", "bounds with NaN on either side", {hq = 4, hk = 2, rank = 8, entries = 2,
    minmax = true, pool = 6, blocks = 6,
    keys_place = {[1] = special.nan, [10] = special.nan, [35] = special.nan, [43] = special.nan}})
  -- Products overflow to infinities of both signs and to NaN; logits are held within the numbers, one block
  -- takes a head.
  both("all-invalid", "logits beyond float", {hq = 2, hk = 1, rank = 2, entries = 2, pool = 3, blocks = 3,
    scale = 1e38,
    bound = 1e-6})

  -- Block 70,000,000 of 64 values begins at element 4.5e9; row 1 of the scores at element 2^31 + 9.
  cases[#cases + 1] = {family = "huge", name = "a pool beyond 2^32 values, scores beyond 2^31",
    make = function()
    local at = 70000000 * 64
    return {family = "huge", name = "", arrays = {
      q = t.random("bf16", 2 * 2 * 8, 21),
      keys = t.sparse("bf16", at + 2 * 64, {[0] = t.random("bf16", 2 * 64, 22), [at] = t.random("bf16",
        2 * 64, 23)}),
      blocks = t.values("i32", {0, 70000000, 70000001, 1}),
      scores = t.sparse("f32", 2 ^ 31 + 16, {[0] = 4, [2 ^ 31 + 9] = 4}),
    }, args = {n_rows = 2, n_q_heads = 2, n_kv_heads = 1, rank = 8, n_entries = 8, n_pool = 70000002,
      n_blocks = 4,
      scores_stride = 2 ^ 31 + 9, scale = 1}}
  end}

  -- An estimate: products of bf16 are exact, `rank` sums round, each within EPS of the sizes added; twice
  -- that, since a
  -- matrix unit may truncate. A share: its logit is off by the estimate's error and a few roundings of its
  -- own size, the
  -- log of the sum likewise, and the polynomial exp and log are within 2 ulp.
  local function bounds(c)
    local a = c.args
    local terms = t.largest(c.arrays.q) * t.largest(c.arrays.keys) * a.rank
    local estimate = 2 * EPS * a.rank * terms
    local logit = a.scale * estimate + 4 * EPS * (a.scale * terms + 20)
    return {scores = function(_, want)
      if a.mass == 0 then return estimate end
      return c.bound or math.abs(want) * 2 * (2 * logit + 16 * EPS) + 1e-37
    end}
  end

  return {cases = cases, bounds = bounds, ordered = function(c) return c.args.mass == 0 end}
end
