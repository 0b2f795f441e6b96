-- Cases of attend. Orders of summation differ everywhere: bounds, not bits.

local EPS = 2 ^ -23

local function sequence(first, last, step)
  local list = {}
  for i = first, last, step do list[#list + 1] = i end
  return list
end

return function(t)
  -- o: rows, hq, hk, dim, size, blocks, pool, tokens, dtype (kv), and what differs from the plain case
  local function case(family, name, o)
    local pool, per_block = o.pool or o.blocks, o.size * o.hk * o.dim
    local q_dtype, rows = o.q_dtype or "f32", o.rows
    return {family = family, name = name, loose = o.loose, arrays = {
      q = t.random(q_dtype, math.max(rows, 1) * o.hq * o.dim, 51, o.q_place),
      k = t.random(o.dtype, math.max(pool, 1) * per_block, 52, o.k_place),
      v = t.random(o.dtype, math.max(pool, 1) * per_block, 53),
      table = o.table and t.values("i32", o.table), positions = o.positions and t.values("i32", o.positions),
      list = o.list and t.values("i32", o.list),
      out = not o.no_out and t.output("f32", rows * o.hq * o.dim) or nil,
      lse = t.output("f32", rows * o.hq), mass = not o.no_mass and t.output("f32", rows * o.blocks) or nil,
    }, args = {q_row_stride = o.hq * o.dim, q_head_stride = o.dim, k_block_stride = per_block,
      k_token_stride = o.hk * o.dim,
      k_head_stride = o.dim, v_block_stride = per_block, v_token_stride = o.hk * o.dim, v_head_stride = o.dim,
      table_stride = o.table_stride or 0, list_stride = o.list_stride or 0, scale = o.scale or o.dim ^ -0.5,
        v_scale = o.v_scale or 1,
      q_dtype = t.dtypes[q_dtype], kv_dtype = t.dtypes[o.dtype], n_rows = rows, n_q_heads = o.hq,
        n_kv_heads = o.hk, head_dim = o.dim,
      block_size = o.size, n_blocks = o.blocks, n_pool = pool, n_tokens = o.tokens or o.blocks * o.size,
        n_list = o.n_list or 0,
      first_position = o.first or o.blocks * o.size - 1}}
  end

  local s = t.special
  local cases = {
    case("regular", "9/3 heads x 64, causal, f16", {rows = 5, hq = 9, hk = 3, dim = 64, size = 16,
      blocks = 6, dtype = "f16", first = 80}),
    case("regular", "8/2 heads x 128, bf16", {rows = 2, hq = 8, hk = 2, dim = 128, size = 16, blocks = 9,
      dtype = "bf16", q_dtype = "bf16"}),
    case("regular", "lists of blocks through tables", {rows = 2, hq = 4, hk = 2, dim = 32, size = 16,
      blocks = 5, pool = 12, dtype = "f32",
      table = {11, 0, 7, 3, 5, 1, 2, 9, 10, 4}, table_stride = 5, list = {0, 2, 4, -1, 1, 3, -1, -1},
        list_stride = 4, n_list = 4}),
    case("regular", "stored with scales, f8e4m3", {rows = 1, hq = 4, hk = 1, dim = 64, size = 16, blocks = 4,
      dtype = "f8e4m3", q_dtype = "f16",
      scale = 0.125 * 0.25, v_scale = 0.5}),
    -- Long rows, which a GPU splits; query heads that are no multiple of what it takes at once.
    case("regular", "2,560 tokens of one row, 8/2 heads x 128", {rows = 1, hq = 8, hk = 2, dim = 128,
      size = 16, blocks = 160, dtype = "bf16"}),
    case("regular", "630 tokens, 6/1 heads x 256", {rows = 2, hq = 6, hk = 1, dim = 256, size = 16,
      blocks = 40, tokens = 630, dtype = "f16", first = 600}),
    case("regular", "a head of its own each, blocks of 7, f8e4m3", {rows = 3, hq = 2, hk = 2, dim = 64,
      size = 7, blocks = 90, dtype = "f8e4m3", q_dtype = "bf16", positions = {629, 0, 300}}),
    case("regular", "a long list of blocks x 96", {rows = 1, hq = 5, hk = 1, dim = 96, size = 16, blocks = 64,
      dtype = "bf16", list = sequence(1, 63, 2), n_list = 32}),
    case("odd", "5 tokens x 37, group 3, a block cut short", {rows = 3, hq = 3, hk = 1, dim = 37, size = 5,
      blocks = 4, tokens = 18, dtype = "f16",
      first = 3}),
    case("odd", "one token of one dimension", {rows = 1, hq = 1, hk = 1, dim = 1, size = 1, blocks = 1,
      dtype = "f8e4m3"}),
    case("odd", "33 tokens x 256, no mass", {rows = 1, hq = 2, hk = 2, dim = 256, size = 33, blocks = 2,
      dtype = "bf16", no_mass = true}),
    case("odd", "only the log-sum", {rows = 2, hq = 2, hk = 1, dim = 20, size = 4, blocks = 3, dtype = "f32",
      no_mass = true, no_out = true}),
    case("empty", "no rows", {rows = 0, hq = 2, hk = 1, dim = 16, size = 4, blocks = 3, dtype = "f32"}),
    case("empty", "no blocks", {rows = 2, hq = 2, hk = 1, dim = 16, size = 4, blocks = 0, dtype = "f32"}),
    case("empty", "an empty list", {rows = 2, hq = 2, hk = 1, dim = 16, size = 4, blocks = 3, dtype = "f32",
      list = {}}),
    -- A row that reads nothing: zeros and -infinity, whatever its memory held.
    case("all-invalid", "positions before the first token", {rows = 3, hq = 2, hk = 1, dim = 16, size = 4,
      blocks = 3, dtype = "f32",
      positions = {-1, -100, 5}}),
    case("all-invalid", "ids out of their pools", {rows = 2, hq = 2, hk = 1, dim = 16, size = 4, blocks = 3,
      pool = 3, dtype = "f16",
      table = {-1, 3, 2147483647, -7, 1, 3}, table_stride = 3, list = {-1, 99, 0, 1, 2, -1}, list_stride = 0,
        n_list = 6}),
    -- Logits far below any fixed mask value: the mean of the values all the same. Their last digit is worth
    -- more than any softmax, so that a mass says nothing.
    case("all-invalid", "logits of -1e30", {rows = 1, hq = 1, hk = 1, dim = 16, size = 4, blocks = 2,
      dtype = "bf16", scale = -1e30, loose = 1e-5, no_mass = true}),
    case("all-invalid", "NaN in one head's query", {rows = 2, hq = 4, hk = 2, dim = 16, size = 4, blocks = 3,
      dtype = "f32",
      q_place = {[20] = s.f32.nan}, no_mass = true}),
    case("all-invalid", "NaN in one head's first key", {rows = 2, hq = 4, hk = 2, dim = 16, size = 4,
      blocks = 3, dtype = "bf16",
      k_place = {[3] = s.bf16.nan}, no_mass = true}),
    case("all-invalid", "keys of -infinity weigh nothing", {rows = 1, hq = 1, hk = 1, dim = 1, size = 4,
      blocks = 2, dtype = "f16",
      q_place = {[0] = s.f32.one}, k_place = {[0] = s.f16.minus_inf, [1] = s.f16.minus_inf,
        [5] = s.f16.minus_inf}}),
  }

  -- Pool block 9,000,000 begins at element 4.6e9.
  cases[#cases + 1] = {family = "huge", name = "a pool beyond 2^32 values", make = function()
    local at = 9000000 * 512
    local function pool(seed)
      return t.sparse("bf16", at + 512, {[0] = t.random("bf16", 512, seed), [at] = t.random("bf16", 512,
        seed + 1)})
    end
    local c = case("huge", "", {rows = 2, hq = 2, hk = 1, dim = 32, size = 16, blocks = 2, dtype = "bf16",
      table = {9000000, 0}, first = 20})
    c.arrays.k, c.arrays.v, c.args.n_pool = pool(54), pool(56), 9000001
    return c
  end}

  -- A logit: head_dim sums round (twice: a matrix unit may truncate) and so does its own size on the way
  -- into exp. Weights
  -- are off by that, relatively, above and below the fraction; n_tokens sums round.
  local function bounds(c)
    local a = c.args
    local terms = a.scale * t.largest(c.arrays.q) * t.largest(c.arrays.k) * a.head_dim
    local logit = EPS * math.abs(terms) * (2 * a.head_dim + 4) + 8 * EPS
    local weight = c.loose or 2 * logit + EPS * (a.n_tokens + 8)
    local out = weight * a.v_scale * t.largest(c.arrays.v) * 2
    return {
      out = function() return out end,
      lse = function(_, want) return (c.loose
        or logit + EPS * (a.n_tokens + 4)) + 4 * EPS * math.abs(want) end,
      mass = function(_, want) return 2 * weight * math.abs(want) + 8 * EPS end,
    }
  end

  return {cases = cases, bounds = bounds, ordered = function() return false end}
end
