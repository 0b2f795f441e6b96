-- Predictors on the default device: what they store, how they score, what they refuse. Regressions begin with
-- the story of a bug seen elsewhere. Longer than other files because all four parts judge by one model in
-- plain Lua (expected, below), and a CUDA device runs the file word for word.
local ffi = require "ffi"
local tide = require "tide"
local raw = require "spec.raw"
local lib = raw.lib

local MEAN, TOKENS, MINMAX = lib.TIDE_SUMMARY_MEAN, lib.TIDE_SUMMARY_TOKENS, lib.TIDE_SUMMARY_MINMAX
local IDENTITY, RANDOM, CALIBRATED = lib.TIDE_PROJECTION_IDENTITY, lib.TIDE_PROJECTION_RANDOM,
  lib.TIDE_PROJECTION_CALIBRATED
local MASS, MAX = lib.TIDE_AGGREGATE_MASS, lib.TIDE_AGGREGATE_MAX
local infinity = math.huge

local defaults = {n_layers = 1, n_blocks = 8, block_size = 4, n_q_heads = 6, n_kv_heads = 2, head_dim = 16}

local function with(fields)
  local settings = {}
  for name, value in pairs(defaults) do settings[name] = value end
  for name, value in pairs(fields or {}) do settings[name] = value end
  return settings
end

local function open(fields) return assert(raw.predictor(with(fields))) end

local function keys(fields, n_tokens, seed, dtype)
  local s = with(fields)
  return raw.noise({n_tokens, s.n_kv_heads, s.head_dim}, seed, 1, dtype)
end

local function queries(fields, n_rows, seed)
  local s = with(fields)
  return raw.noise({n_rows, s.n_q_heads, s.head_dim}, seed)
end

-- Every choice of summary, projection and aggregate.
local function each_kind(f)
  for summary = MEAN, MINMAX do
    for projection = IDENTITY, RANDOM do
      for aggregate = MASS, MAX do
        f({summary = summary, projection = projection, aggregate = aggregate,
          rank = projection == RANDOM and 7 or 0})
      end
    end
  end
end

local function values(b) return b:read():totable() end

-- The stored vectors of a block: lists [head][entry][j], nil when nothing is written.
local function slot(p, layer, block)
  local stored = p:slot(layer, block)
  return stored and values(stored)
end

-- Its bits, of layer 0.
local function bytes(p, block) return ffi.string(assert(p:slot(0, block)):bytes()) end

-- An entry's estimate of q.k, from what is stored.
local function estimate(q, vectors, entry, minmax)
  local sum = 0
  for j = 1, #q do
    if minmax then sum = sum + math.max(q[j] * vectors[1][j], q[j] * vectors[2][j])
    else sum = sum + q[j] * vectors[entry][j] end
  end
  return sum
end

-- Scores of one row over blocks (ids), worked out in plain Lua from slots and projected queries.
local function expected(p, s, q, layer, blocks)
  local group, minmax = s.n_q_heads / s.n_kv_heads, s.summary == MINMAX
  local scale = 1 / math.sqrt(s.head_dim) * (s.projection == RANDOM and s.head_dim / p._sizes.rank or 1)
  local scores, logits, sums = {}, {}, {}
  for i, block in ipairs(blocks) do
    local stored = slot(p, layer, block)
    scores[i], logits[i] = -infinity, stored and {}
    for h = 1, stored and s.n_q_heads or 0 do
      local vectors, weight = stored[math.floor((h - 1) / group) + 1], 0
      for entry = 1, minmax and 1 or #vectors do
        local e = estimate(q[h], vectors, entry, minmax)
        scores[i] = math.max(scores[i], e)
        weight = weight + math.exp(scale * e)
      end
      logits[i][h] = weight
      sums[h] = (sums[h] or 0) + weight
    end
  end
  if s.aggregate == MAX then return scores end
  for i = 1, #blocks do
    if logits[i] then
      scores[i] = 0
      for h = 1, s.n_q_heads do scores[i] = scores[i] + logits[i][h] / sums[h] / s.n_q_heads end
    end
  end
  return scores
end

local function assert_close(want, got, tolerance, what)
  assert.are.equal(#want, #got)
  for i = 1, #want do
    local near = want[i] == got[i] or math.abs(want[i] - got[i]) <= tolerance * math.max(1, math.abs(want[i]))
    assert.is_true(near, ("%s: entry %d is %s, want %s"):format(what or "scores", i - 1, got[i], want[i]))
  end
end

local function range(first, last)
  local list = {}
  for i = first, last do list[#list + 1] = i end
  return list
end

-- Writes, scores rows, compares with the plain Lua of the same.
local function check_scores(fields, n_tokens, n_rows)
  local s, p = with(fields), open(fields)
  local q = queries(fields, n_rows, 2)
  assert(p:write(keys(fields, n_tokens, 1)))
  local scores, projected = values(assert(p:score(q))), values(assert(p:project(q)))
  for row = 1, n_rows do
    assert_close(expected(p, s, projected[row], 0, range(0, s.n_blocks - 1)), scores[row], 2e-5,
      "row " .. row - 1)
  end
  p:close()
end

describe("a predictor", function()
  setup(function() raw.open() end)

  it("scores what it stores, for every summary, projection and aggregate", function()
    each_kind(function(kind) check_scores(kind, 27, 3) end)
  end)

  it("serves any ratio of query to kv heads", function()
    for _, heads in ipairs {{3, 3}, {9, 3}, {12, 1}, {24, 2}} do
      check_scores({n_q_heads = heads[1], n_kv_heads = heads[2], summary = TOKENS}, 32, 2)
      check_scores({n_q_heads = heads[1], n_kv_heads = heads[2], projection = RANDOM, rank = 5}, 32, 2)
    end
  end)

  it("serves any rank from 1 to 128", function()
    for _, rank in ipairs {1, 7, 33, 128} do
      for summary = MEAN, MINMAX do
        for aggregate = MASS, MAX do
          check_scores({projection = RANDOM, rank = rank, summary = summary, aggregate = aggregate}, 32, 2)
        end
      end
    end
  end)

  it("serves any head_dim to 256 and any block size", function()
    for _, dim in ipairs {1, 33, 80, 256} do check_scores({head_dim = dim}, 32, 2) end
    for _, size in ipairs {1, 3, 17} do
      check_scores({block_size = size, summary = TOKENS}, 5 * size + size - 1, 2)
    end
  end)

  it("stores bf16( K P ) for tokens, means and bounds of it for blocks", function()
    local dim, rank = 16, 7
    local patterns = ffi.new("uint16_t[?]", dim * rank)
    lib.tide_random_projection(dim, rank, 0, patterns)
    local map = values(assert(tide.wrap(patterns, "bf16", {dim, rank}, {device = "cpu"})))
    local k = keys({}, 8, 1)
    local list = values(k)
    for summary = MEAN, MINMAX do
      local p = open {summary = summary, projection = RANDOM, rank = rank}
      assert(p:write(k))
      for block = 0, 1 do
        local stored = slot(p, 0, block)
        for head = 1, 2 do
          for j = 1, rank do
            local sum, low, high = 0, infinity, -infinity
            for t = 1, 4 do
              local x = 0
              for d = 1, dim do x = x + list[block * 4 + t][head][d] * map[d][j] end
              sum, low, high = sum + x, math.min(low, x), math.max(high, x)
              if summary == TOKENS then assert.is_near(x, stored[head][t][j], math.abs(x) / 250 + 1e-6) end
            end
            -- The block's numbers come from projected keys that were rounded to bf16 already.
            if summary == MEAN then assert.is_near(sum / 4, stored[head][1][j], 0.01) end
            if summary == MINMAX then
              assert.is_near(low, stored[head][1][j], 0.01)
              assert.is_near(high, stored[head][2][j], 0.01)
            end
          end
        end
      end
      p:close()
    end
  end)

  it("keeps layers apart", function()
    local fields = {n_layers = 3, summary = TOKENS}
    local p, q = open(fields), queries(fields, 1, 9)[0]
    assert(p:write(keys(fields, 32, 1), {layer = 0}))
    local alone = values(p:score(q))
    assert(p:write(keys(fields, 32, 2), {layer = 2}))
    assert.are.same(alone, values(p:score(q)))
    for _, score in ipairs(values(p:score(q, {layer = 1}))) do assert.are.equal(-infinity, score) end
    assert.are_not.same(alone, values(p:score(q, {layer = 2})))
    p:close()
  end)

  it("reads keys of any float dtype and any strides with the same result", function()
    local k = keys({}, 32, 1, "bf16")
    local f32 = k:to("f32")
    local want = open()
    assert(want:write(k))
    local forms = {f32 = f32, f16 = f32:to("f16")}
    forms["head first"] = tide.buf{shape = {2, 32, 16}}:permute{1, 0, 2}
    forms["head first"]:copy(f32)
    forms["beside another tensor"] = tide.buf{shape = {32, 2, 40}}:slice(2, 8, 16)
    forms["beside another tensor"]:copy(k)
    for name, form in pairs(forms) do
      local p = open()
      assert(p:write(form))
      for block = 0, 7 do assert.are.equal(bytes(want, block), bytes(p, block), name) end
      p:close()
    end
    want:close()
  end)

  it("writes blocks of a paged pool where the caller says they are", function()
    each_kind(function(kind)
      local k = keys(kind, 32, 3)
      local pool = k:reshape{8, 4, 2, 16}
      local plain, paged = open(kind), open(kind)
      assert(plain:write(k))
      assert(paged:write(pool, {src = tide.from({5, 0, 7}, "i32"), dst = tide.from({1, 6, 0}, "i32")}))
      for block, from in pairs {[1] = 5, [6] = 0, [0] = 7} do
        assert.are.equal(bytes(plain, from), bytes(paged, block))
      end
      for _, block in ipairs {2, 3, 4, 5, 7} do assert.is_nil(slot(paged, 0, block)) end
      assert(paged:write(pool, {src = tide.from({2, 3}, "i32"), first = 4}))
      assert.are.equal(bytes(plain, 3), bytes(paged, 5))
      plain:close()
      paged:close()
    end)
  end)

  it("leaves out ids that are out of range, in src and in dst, and keeps what stood there", function()
    each_kind(function(kind)
      local p, old, new = open(kind), keys(kind, 32, 4), keys(kind, 32, 5)
      assert(p:write(old))
      local before = {}
      for block = 0, 7 do before[block] = bytes(p, block) end
      assert(p:write(new, {src = tide.from({0, 8, -1, 3, 2 ^ 31 - 1}, "i32"),
        dst = tide.from({0, 1, 2, 8, 4}, "i32")}))
      assert.are_not.equal(before[0], bytes(p, 0))
      for block = 1, 7 do assert.are.equal(before[block], bytes(p, block)) end
      assert(p:forget())
      assert(p:write(new, {src = tide.from({9, 1}, "i32"), dst = tide.from({2, 3}, "i32")}))
      assert.is_nil(slot(p, 0, 2))
      assert.is_not_nil(slot(p, 0, 3))
      p:close()
    end)
  end)

  it("summarises many blocks through its chunk as it does one by one", function()
    local fields = {n_blocks = 600, block_size = 2, projection = RANDOM, rank = 5, n_kv_heads = 1,
      n_q_heads = 1}
    local k = keys(fields, 1200, 6)
    for summary = MEAN, MINMAX do
      fields.summary = summary
      local many, single = open(fields), open(fields)
      assert(many:write(k))
      for _, block in ipairs {0, 1, 255, 256, 257, 511, 512, 599} do
        assert(single:write(k:slice(0, 2 * block, 2), {first = block}))
        assert.are.equal(bytes(single, block), bytes(many, block))
      end
      many:close()
      single:close()
    end
  end)

  it("subtracts a mean key before any projection, and the mass hardly notices", function()
    for projection = IDENTITY, RANDOM do
      for summary = MEAN, MINMAX do
        local fields = {projection = projection, rank = projection == RANDOM and 12 or 0, summary = summary,
          n_layers = 2}
        local mean = ffi.new("float[64]", raw.normal(64, 11, 0.2))
        local k, q = keys(fields, 32, 1), queries(fields, 2, 2)
        local k_list = k:read()
        local shifted = {}
        for i = 0, k.n - 1 do shifted[i + 1] = k_list[i] - mean[32 + i % 32] end
        local plain = open(fields)
        fields.k_mean = mean
        local centred = open(fields)
        assert(centred:write(k, {layer = 1}))
        assert(plain:write(tide.from(shifted, "f32"):reshape{32, 2, 16}, {layer = 1}))
        local want, got = values(plain:score(q, {layer = 1})), values(centred:score(q, {layer = 1}))
        for row = 1, 2 do assert_close(want[row], got[row], 4e-3) end
        plain:close()
        centred:close()
      end
    end
  end)

  it("uses a calibrated map of its own for every layer and kv head, and for queries another", function()
    local fields = {n_layers = 2, projection = CALIBRATED, rank = 3, summary = TOKENS, aggregate = MAX}
    local n = 2 * 2 * 16 * 3
    local k_map = tide.from(raw.normal(n, 21), "f32"):reshape{2, 2, 16, 3}
    local q_map = tide.from(raw.normal(n, 22), "f32"):reshape{2, 2, 16, 3}
    local kept = {k_map:read(), q_map:read()}
    fields.k_map, fields.q_map = kept[1].pointer, kept[2].pointer
    local p, k, q = open(fields), keys(fields, 4, 1), queries(fields, 1, 2)
    assert(p:write(k, {layer = 1}))
    local stored, projected = slot(p, 1, 0), values(p:project(q, {layer = 1}))
    local k_maps, q_maps, k_list, q_list = values(k_map), values(q_map), values(k), values(q)
    local function product(x, map, j)
      local sum = 0
      for d = 1, 16 do sum = sum + x[d] * map[d][j] end
      return sum
    end
    for j = 1, 3 do
      for head = 1, 2 do
        for t = 1, 4 do
          assert.is_near(product(k_list[t][head], k_maps[2][head], j), stored[head][t][j], 0.1)
        end
      end
      for h = 1, 6 do
        assert.is_near(product(q_list[1][h], q_maps[2][h > 3 and 2 or 1], j), projected[1][h][j], 0.1)
      end
    end
    p:close()
  end)
end)

describe("scores", function()
  setup(function() raw.open() end)

  it("of many rows equal those of each row alone, in turns of max_rows", function()
    each_kind(function(kind)
      kind.max_rows = 4
      local p, q = open(kind), queries(kind, 11, 7)
      assert(p:write(keys(kind, 32, 1)))
      local together = values(p:score(q))
      for row = 1, 11 do assert_close(values(p:score(q[row - 1])), together[row], 1e-6) end
      p:close()
    end)
  end)

  it("follow a list of blocks, one for all rows or one for each", function()
    each_kind(function(kind)
      local p, q = open(with(kind)), queries(kind, 10, 7)
      assert(p:write(keys(kind, 32, 1)))
      local lists = {}
      for row = 1, 10 do lists[row] = {row % 8, (3 * row) % 8, 5} end
      local each = values(p:score(q, {blocks = tide.from(lists, "i32")}))
      for row = 1, 10 do
        assert_close(values(p:score(q[row - 1], {blocks = tide.from(lists[row], "i32")})), each[row], 1e-6)
      end
      local all = values(p:score(q, {blocks = tide.from({7, 0, 3, 1, 2, 4, 5, 6}, "i32")}))
      local plain = values(p:score(q))
      for row = 1, 10 do
        for i, block in ipairs {7, 0, 3, 1, 2, 4, 5, 6} do
          assert.is_near(plain[row][block + 1], all[row][i], 1e-5)
        end
      end
      p:close()
    end)
  end)

  it("leave out what is beyond a row's length, and ids that are none, from the softmax, too", function()
    each_kind(function(kind)
      local p, q = open(kind), queries(kind, 9, 7)
      assert(p:write(keys(kind, 32, 1)))
      local lengths = {}
      for row = 1, 9 do lengths[row] = row - 1 end
      local scores = values(p:score(q, {lengths = tide.from(lengths, "i32")}))
      for row = 1, 9 do
        for i = row, 8 do assert.are.equal(-infinity, scores[row][i]) end
        if row > 1 then
          local alone = values(p:score(q[row - 1], {n = row - 1}))
          for i = 1, row - 1 do assert.is_near(alone[i], scores[row][i], 1e-6) end
        end
      end
      local odd = values(p:score(q[0], {blocks = tide.from({2, -1, 8, 3}, "i32")}))
      local even = values(p:score(q[0], {blocks = tide.from({2, 3}, "i32")}))
      assert_close({even[1], -infinity, -infinity, even[2]}, odd, 1e-6)
      p:close()
    end)
  end)

  it("of mass sum to one over written blocks", function()
    for projection = IDENTITY, RANDOM do
      local p = open {projection = projection, rank = projection == RANDOM and 7 or 0, summary = TOKENS}
      assert(p:write(keys({}, 20, 1)))
      local sum = 0
      for _, score in ipairs(values(p:score(queries({}, 1, 3)[0]))) do
        if score > -infinity then sum = sum + score end
      end
      assert.is_near(1, sum, 1e-5)
      p:close()
    end
  end)

  it("of identity tokens are the true mass of attention over whole blocks", function()
    local k, q = keys({}, 32, 1, "bf16"), queries({}, 3, 2):to("bf16")
    local p = open {summary = TOKENS}
    assert(p:write(k))
    local mass, lse = tide.buf{shape = {3, 8}}, tide.buf{shape = {3, 6}}
    assert(raw.attend{q = q, k = k, mass = mass, lse = lse, block_size = 4, first_position = 31})
    local want, got = values(mass), values(p:score(q))
    for row = 1, 3 do assert_close(want[row], got[row], 1e-5) end
    p:close()
  end)

  it("cost nothing and touch nothing for an empty range", function()
    local p, q = open(), queries({}, 1, 1)
    assert(p:write(keys({}, 32, 1)))
    assert.are.equal(0, assert(p:score(q[0], {n = 0})).n)
    assert.are.equal(0, assert(p:score(q, {blocks = tide.buf{dtype = "i32", shape = {0}}})).n)
    assert.are.equal(0, assert(p:score(tide.buf{shape = {0, 6, 16}})).n)
    p:close()
  end)
end)

describe("regression", function()
  setup(function() raw.open() end)

  -- H1. A store recorded a block's score once, when it loaded the block, and never again: later queries were
  -- ranked by what an earlier one had asked, and scores of several layers stood in one order.
  it("H1: a score belongs to its query and its layer, not to the time a block was loaded", function()
    local p = open {n_layers = 2, summary = TOKENS, aggregate = MAX, n_q_heads = 1, n_kv_heads = 1,
      head_dim = 8, n_blocks = 2}
    local function axis(d)
      local x = {}
      for i = 1, 8 do x[i] = i == d and 1 or 0 end
      return x
    end
    local function block(d) return {{axis(d)}, {axis(d)}, {axis(d)}, {axis(d)}} end
    local function text(a, b)
      local k = block(a)
      for _, token in ipairs(block(b)) do k[#k + 1] = token end
      return tide.from(k, "f32")
    end
    assert(p:write(text(1, 2), {layer = 0}))
    assert(p:write(text(2, 1), {layer = 1}))
    for _ = 1, 2 do
      assert.are.same({1, 0}, values(p:score(tide.from({axis(1)}, "f32"), {layer = 0})))
      assert.are.same({0, 1}, values(p:score(tide.from({axis(2)}, "f32"), {layer = 0})))
      assert.are.same({0, 1}, values(p:score(tide.from({axis(1)}, "f32"), {layer = 1})))
    end
    p:close()
  end)

  -- H2. Low-rank keys were not zeroed when they were made; attention before a block had been projected scored
  -- what the memory held and recorded it.
  it("H2: a block that was never written scores -infinity, whatever its memory holds", function()
    each_kind(function(kind)
      for _ = 1, 2 do
        local p, q = open(kind), queries(kind, 2, 3)
        for _, row in ipairs(values(p:score(q))) do
          for _, score in ipairs(row) do assert.are.equal(-infinity, score) end
        end
        assert(p:write(keys(kind, 4, 1), {first = 3}))
        for _, row in ipairs(values(p:score(q))) do
          for i, score in ipairs(row) do assert.are.equal(i ~= 4, score == -infinity) end
          if kind.aggregate == MASS then assert.is_near(1, row[4], 1e-6) end
        end
        -- What the next predictor is given by the allocator is what this one wrote.
        assert(p:write(keys(kind, 32, 1)))
        p:close()
      end
    end)
  end)

  -- H3. A path that could not project its quantised keys was documented as recency only, and recorded scores
  -- of keys that nobody had written.
  it("H3: with no_predict nothing is recorded and every score is -infinity", function()
    each_kind(function(kind)
      kind.no_predict = 1
      local p, q = open(kind), queries(kind, 3, 3)
      assert(p:write(keys(kind, 32, 1)))
      assert(p:append(keys(kind, 30, 1)))
      assert(p:forget())
      local scores = tide.buf{shape = {3, 8}}:fill(5)
      assert(p:score(q, {out = scores}))
      for _, row in ipairs(values(scores)) do
        for _, score in ipairs(row) do assert.are.equal(-infinity, score) end
      end
      assert.are.equal(-infinity, p:score(q[0], {n = 1}):read()[0])
      assert.has_error(function() p:slot(0, 0) end, "slot: this predictor records nothing; set by no_predict")
      p:close()
    end)
  end)

  -- H8. A slot that was freed and given to another block kept the old block's score until somebody overwrote
  -- it.
  it("H8: a forgotten block scores -infinity until it is written again, and then like new", function()
    each_kind(function(kind)
      kind.n_layers = 2
      local p, fresh, q = open(kind), open(kind), queries(kind, 2, 3)
      local old, new = keys(kind, 32, 1), keys(kind, 4, 2)
      for layer = 0, 1 do assert(p:write(old, {layer = layer})) end
      assert(p:forget{layer = 1, blocks = tide.from({5, -1, 8, 2 ^ 31 - 1, 0, 5}, "i32")})
      for i, score in ipairs(values(p:score(q[0], {layer = 1}))) do
        assert.are.equal(i == 6 or i == 1, score == -infinity)
      end
      for _, score in ipairs(values(p:score(q[0], {layer = 0}))) do assert.is_true(score > -infinity) end
      assert(p:write(new, {layer = 1, first = 5}))
      assert(fresh:write(old, {layer = 1}))
      assert(fresh:write(new, {layer = 1, first = 5}))
      assert(fresh:forget{layer = 1, blocks = tide.from({0}, "i32")})
      assert.are.same(values(fresh:score(q, {layer = 1})), values(p:score(q, {layer = 1})))
      assert(p:forget{blocks = tide.from({2}, "i32")})
      for layer = 0, 1 do assert.are.equal(-infinity, p:score(q[0], {layer = layer}):read()[2]) end
      assert(p:forget())
      for layer = 0, 1 do
        for _, score in ipairs(values(p:score(q[0], {layer = layer}))) do
          assert.are.equal(-infinity, score)
        end
      end
      p:close()
      fresh:close()
    end)
  end)

  -- H10. One NaN among the scores made the comparator of the ranking inconsistent, and the order arbitrary.
  it("H10: NaN and infinity in a key or a query never give a NaN score, and NaN never wins", function()
    local nan, n_seen = 0 / 0, 0
    each_kind(function(kind)
      for _, bad in ipairs {nan, infinity, -infinity} do
        for _, where in ipairs {"one key", "a block of keys", "one query", "every query"} do
          local p, k, q = open(kind), raw.normal(32 * 32, 1), raw.normal(96, 2)
          if where == "one key" then k[4 * 32 + 4] = bad end
          for i = 129, where == "a block of keys" and 256 or 0 do k[i] = bad end
          if where == "one query" then q[6] = bad end
          for i = 1, where == "every query" and 96 or 0 do q[i] = bad end
          assert(p:write(tide.from(k, "f32"):reshape{32, 2, 16}))
          local scores = p:score(tide.from(q, "f32"):reshape{6, 16})
          for i, score in ipairs(values(scores)) do
            assert.are.equal(score, score, ("%s of %s: block %d"):format(tostring(bad), where, i - 1))
          end
          if bad ~= bad and where == "a block of keys" then
            assert.are.same({0, 2, 3, 4, 5, 6, 7}, values(scores:topk(7)))
          end
          n_seen = n_seen + 1
          p:close()
        end
      end
    end)
    assert.are.equal(12 * 12, n_seen)
  end)
end)

describe("misuse of a predictor", function()
  setup(function() raw.open() end)

  local function refused(code, pattern, ok, message, got)
    assert.is_nil(ok)
    assert.are.equal(code, got)
    assert.matches(pattern, message)
  end
  local function call(name, ...) return raw.outcome(lib["tide_predictor_" .. name](...)) end

  it("is refused with the argument, both values and the setting", function()
    local p = open {n_layers = 2}
    local h, q, k = p._handle, queries({}, 2, 1), keys({}, 32, 1)
    local scores = tide.buf{shape = {2, 8}}
    local function view(b) return b._view end
    local wide, other_heads = keys({head_dim = 17}, 8, 1), keys({n_kv_heads = 3}, 8, 1)
    refused("ERANGE", "layer: .*got 2, want 0..1.*n_layers", call("write", h, 2, view(k), nil, nil, 0, nil))
    refused("ERANGE", "layer: .*got %-1, want 0..1", call("score", h, -1, view(q), nil, view(scores), nil))
    refused("ERANGE", "layer: .*got %-2, want %-1..1", call("forget", h, -2, nil, nil))
    refused("ESHAPE", "write: k: .*got f32%[8, 2, 17%], want %[n, 2, 16%].*head_dim",
      call("write", h, 0, view(wide), nil, nil, 0, nil))
    refused("ESHAPE", "got f32%[8, 3, 16%], want %[n, 2, 16%].*n_kv_heads",
      call("write", h, 0, view(other_heads), nil, nil, 0, nil))
    refused("ESHAPE", "got f32%[4, 8, 2, 16%], want %[n, 4, 2, 16%].*block_size",
      call("write", h, 0, view(k:reshape{4, 8, 2, 16}), nil, nil, 0, nil))
    refused("EDTYPE", "write: k: .*got i32, want f32, f16 or bf16",
      call("write", h, 0, view(tide.buf{dtype = "i32", shape = {8, 2, 16}}), nil, nil, 0, nil))
    refused("EDTYPE", "write: src: .*got f32, want i32", call("write", h, 0, view(k),
      view(tide.buf{shape = {2}}), nil, 0, nil))
    refused("ESHAPE", "write: dst: .*got i32%[2%], want %[3%]", call("write", h, 0, view(k),
      view(tide.from({0, 1, 2}, "i32")), view(tide.from({0, 1}, "i32")), 0, nil))
    refused("ESHAPE", "dst names more blocks than k holds .*got 3, want at most 2", call("write", h, 0,
      view(k:slice(0, 0, 8)), nil, view(tide.from({0, 1, 2}, "i32")), 0, nil))
    refused("ERANGE", "first_block: .*got 1..8, want within 0..7.*n_blocks", call("write", h, 0, view(k),
      nil, nil, 1, nil))
    refused("ERANGE", "first_block: .*got %-1", call("write", h, 0, view(k), nil, nil, -1, nil))
    refused("ESHAPE", "write: k: dimension 2 is not contiguous .*got stride 2, want 1",
      call("write", h, 0, view(tide.buf{shape = {8, 16, 2}}:permute{0, 2, 1}), nil, nil, 0, nil))
    refused("EINVAL", "write: k: required", call("write", h, 0, nil, nil, nil, 0, nil))
    refused("ESHAPE", "score: q: .*got f32%[2, 5, 16%], want %[n, 6, 16%].*n_q_heads",
      call("score", h, 0, view(tide.buf{shape = {2, 5, 16}}), nil, view(scores), nil))
    refused("ESHAPE", "score: scores: .*got f32%[2, 8%], want %[1, 8%]",
      call("score", h, 0, view(q:slice(0, 0, 1)), nil, view(scores), nil))
    refused("ESHAPE", "score: scores: .*got f32%[2, 8%], want %[8%]", call("score", h, 0, view(q[0]), nil,
      view(scores), nil))
    local request = ffi.new("tide_score_request", {first = 3, count = 6})
    refused("ERANGE", "first and count .*got 3 and 6, want within 8", call("score", h, 0, view(q), request,
      view(scores), nil))
    local long = tide.from({0, 1, 2, 3, 4, 5, 6, 7, 0}, "i32")
    request = ffi.new("tide_score_request", {blocks = view(long)})
    refused("ESHAPE", "blocks lists more .*got 9, want at most 8.*n_blocks", call("score", h, 0, view(q),
      request, view(scores), nil))
    local lengths = tide.from({1, 2, 3}, "i32")
    request = ffi.new("tide_score_request", {lengths = view(lengths)})
    refused("ESHAPE", "score: lengths: .*got i32%[3%], want %[2%]", call("score", h, 0, view(q), request,
      view(scores), nil))
    refused("ESHAPE", "project: out: .*want %[2, 6, 16%].*rank",
      call("project", h, 0, view(q), view(tide.buf{dtype = "bf16", shape = {2, 6, 15}}), nil))
    refused("ERANGE", "slot: block: .*got 8..8, want within 0..7", call("slot", h, 0, 8, ffi.new "tide_view",
      nil))
    p:close()
  end)

  it("is a view of another device", function()
    local ctx, id = tide.context(), ffi.new "int32_t[1]"
    assert(raw.outcome(lib.tide_device_open(ctx:handle(), "null", id)))
    local p = open {device = id[0]}
    refused("EDEVICE", "write: k: lies on another device .*got .*, want null",
      call("write", p._handle, 0, keys({}, 8, 1)._view, nil, nil, 0, nil))
    p:close()
  end)

  it("is a calibrated projection without its map", function()
    local p, message, code = raw.predictor(with {projection = CALIBRATED, rank = 4})
    refused("EINVAL", "k_map: .*got NULL, want f32 %[1, 2, 16, 4%]", p, message, code)
  end)

  it("is a call after its context was closed; closing then is fine, in any order", function()
    local ctx = raw.open()
    local p, k, q = assert(raw.predictor(with(), ctx)), keys({}, 8, 1), queries({}, 1, 1)
    local out = tide.buf{shape = {8}}
    local handle = ctx:handle()
    ctx:close()
    local view = ffi.new "tide_view"
    assert.are.equal(lib.TIDE_ESTATE, lib.tide_predictor_write(p._handle, 0, k._view, nil, nil, 0, nil))
    assert.are.equal(lib.TIDE_ESTATE, lib.tide_predictor_score(p._handle, 0, q._view, nil, out._view, nil))
    assert.are.equal(lib.TIDE_ESTATE, lib.tide_predictor_slot(p._handle, 0, 0, view, nil))
    assert.matches("its context is closed", ffi.string(lib.tide_errmsg(handle)))
    p:close()
    p:close()
    assert.are.equal(lib.TIDE_EINVAL, lib.tide_predictor_forget(nil, 0, nil, nil))
    lib.tide_predictor_close(nil)
  end)
end)
