-- Calibration: the directions that keys (and queries) of a model really use.
local ffi = require "ffi"
local tide = require "tide"
local helper = require "spec.helper"
local capture = require "spec.capture"
local raw = require "spec.raw"
local lib = raw.lib

local function values(array, ...)
  local n = 1
  for _, extent in ipairs {...} do n = n * extent end
  local list = {}
  for i = 0, n - 1 do list[i + 1] = array[i] end
  return list
end

-- map[head][d][j] of a flat f32 array [heads, dim, rank].
local function at(map, dim, rank, head, d, j) return map[(head * dim + d) * rank + j] end

-- E[x x^T] of rows of a list [rows][heads][dim], heads first..last (from 1), less the mean, which is 0 where
-- not centred.
local function moment(list, first, last, mean)
  local dim, s, n = #list[1][1], {}, 0
  for i = 1, dim do s[i] = {} for j = 1, dim do s[i][j] = 0 end end
  for _, row in ipairs(list) do
    for head = first, last do
      n = n + 1
      for i = 1, dim do
        for j = 1, dim do
          s[i][j] = s[i][j] + (row[head][i] - mean[i]) * (row[head][j] - mean[j])
        end
      end
    end
  end
  for i = 1, dim do for j = 1, dim do s[i][j] = s[i][j] / n end end
  return s
end

-- Keys whose spread differs by direction, with a mean.
local function keys(n, heads, dim, seed)
  local x = raw.normal(n * heads * dim, seed)
  for i = 0, #x - 1 do
    local d = i % dim
    x[i + 1] = x[i + 1] * 2 ^ (-((d * 5) % dim) / 3) + 0.3 * math.sin(d + 1)
  end
  return tide.from(x, "f32"):reshape{n, heads, dim}
end

describe("calibration", function()
  setup(function() raw.open(0) end)

  it("gives orthonormal directions that diagonalise the second moment, largest first", function()
    local dim, rank, heads = 12, 12, 2
    local k = keys(300, heads, dim, 1)
    local list = k:read():totable()
    for centred = 0, 1 do
      local maps = assert(raw.calibrate({{k = k}}, {rank = rank, centred = centred}))
      assert.are.same(values(maps.k_map, heads * dim * rank), values(maps.q_map, heads * dim * rank))
      for head = 0, heads - 1 do
        local mean = values(maps.k_mean + head * dim, dim)
        local s = moment(list, head + 1, head + 1, mean)
        local before = math.huge
        for a = 0, rank - 1 do
          for b = 0, rank - 1 do
            local dot, form = 0, 0
            for i = 0, dim - 1 do
              dot = dot + at(maps.k_map, dim, rank, head, i, a) * at(maps.k_map, dim, rank, head, i, b)
              for j = 0, dim - 1 do
                form = form + at(maps.k_map, dim, rank, head, i, a) * s[i + 1][j + 1]
                  * at(maps.k_map, dim, rank, head, j, b)
              end
            end
            assert.is_near(a == b and 1 or 0, dot, 1e-6)
            if a ~= b then assert.is_near(0, form, 1e-6) end
            if a == b then
              assert.is_true(form <= before)
              before = form
            end
          end
        end
        for d = 1, dim do
          local sum = 0
          for _, row in ipairs(list) do sum = sum + row[head + 1][d] / #list end
          assert.is_near(centred == 1 and sum or 0, mean[d], 1e-6)
        end
      end
    end
  end)

  -- k_map q_map^T = L U U^T L^-1: with every direction kept it is the identity.
  it("keeps every product of query and key when it keeps every direction", function()
    local dim, heads = 8, 2
    local texts = {{k = keys(100, heads, dim, 1), q = raw.noise({30, 6, dim}, 2)}}
    for query_aware = 0, 1 do
      local maps = assert(raw.calibrate(texts, {rank = dim, centred = query_aware,
        query_aware = query_aware}))
      for head = 0, heads - 1 do
        for i = 0, dim - 1 do
          for j = 0, dim - 1 do
            local sum = 0
            for r = 0, dim - 1 do
              sum = sum + at(maps.k_map, dim, dim, head, i, r) * at(maps.q_map, dim, dim, head, j, r)
            end
            assert.is_near(i == j and 1 or 0, sum, 1e-5)
          end
        end
      end
    end
  end)

  it("loses least of q.k, in the mean square, when it knows the queries", function()
    local dim, heads, rank = 16, 1, 4
    local q = keys(200, 2, dim, 9)
    local k = raw.noise({200, heads, dim}, 3)
    local function loss(query_aware)
      local maps = assert(raw.calibrate({{k = k, q = q}}, {rank = rank, query_aware = query_aware}))
      local total, k_list, q_list = 0, k:read():totable(), q:read():totable()
      for t = 1, 200, 4 do
        for row = 1, 200, 4 do
          local x, y, exact, estimate = k_list[t][1], q_list[row][1], 0, 0
          for d = 1, dim do exact = exact + x[d] * y[d] end
          for j = 0, rank - 1 do
            local a, b = 0, 0
            for d = 0, dim - 1 do
              a = a + x[d + 1] * at(maps.k_map, dim, rank, 0, d, j)
              b = b + y[d + 1] * at(maps.q_map, dim, rank, 0, d, j)
            end
            estimate = estimate + a * b
          end
          total = total + (exact - estimate) ^ 2
        end
      end
      return total
    end
    assert.is_true(loss(1) < 0.5 * loss(0))
  end)

  it("of two texts is that of their tokens together, in any dtype and any strides", function()
    local k = keys(60, 2, 8, 1)
    local settings = {rank = 5, centred = 1}
    local whole = assert(raw.calibrate({{k = k}}, settings))
    local wide = tide.buf{shape = {60, 2, 20}}:slice(2, 3, 8)
    wide:copy(k)
    local parts = assert(raw.calibrate({{k = k:slice(0, 0, 17)}, {k = wide:slice(0, 17, 43)}}, settings))
    assert.are.same(values(whole.k_map, 2 * 8 * 5), values(parts.k_map, 2 * 8 * 5))
    assert.are.same(values(whole.k_mean, 16), values(parts.k_mean, 16))
    local half = k:to("bf16")
    local narrow, same = assert(raw.calibrate({{k = half}}, settings)),
      assert(raw.calibrate({{k = half:to("f32")}}, settings))
    assert.are.same(values(same.k_map, 2 * 8 * 5), values(narrow.k_map, 2 * 8 * 5))
  end)

  it("serves fewer tokens than directions, and head_dim 1 and 256", function()
    local few = assert(raw.calibrate({{k = keys(3, 1, 16, 1)}}, {rank = 16}))
    for i = 0, 255 do assert.is_true(math.abs(few.k_map[i]) <= 1) end
    assert.are.equal(1, assert(raw.calibrate({{k = keys(5, 1, 1, 1)}}, {rank = 1})).k_map[0])
    local wide = assert(raw.calibrate({{k = keys(40, 1, 256, 1)}}, {rank = 2}))
    local norm = 0
    for d = 0, 255 do norm = norm + wide.k_map[2 * d] ^ 2 end
    assert.is_near(1, norm, 1e-5)
  end)

  -- Bits, not closeness: stored vectors of one machine are compared with queries of another.
  it("gives the same bits on every machine", function()
    local c = assert(capture.load "harbour")
    local maps = assert(raw.calibrate({c.host}, {rank = 16, centred = 1, query_aware = 1}))
    local n = 3 * 64 * 16
    assert.are.equal("cf09d541c3a89502", raw.fnv(ffi.cast("uint32_t *", maps.k_map), n))
    assert.are.equal("c82cbeffde2796b5", raw.fnv(ffi.cast("uint32_t *", maps.q_map), n))
  end)
end)

describe("misuse of calibration", function()
  setup(function() raw.open(0) end)

  local function refused(code, pattern, texts, settings)
    local maps, message, got = raw.calibrate(texts, settings)
    assert.is_nil(maps)
    assert.are.equal(code, got)
    assert.matches(pattern, message)
  end

  it("is refused with both values, and nothing is written", function()
    local k, q = keys(20, 2, 8, 1), raw.noise({5, 4, 8}, 2)
    refused("EINVAL", "rank out of range .*got 9, want 1..8 for head_dim 8", {{k = k}}, {rank = 9})
    refused("EINVAL", "rank out of range .*got 32, want 1..8", {{k = k}}, {})
    refused("EINVAL", "rank out of range .*got %-1", {{k = k}}, {rank = -1})
    refused("ESHAPE", "k%[1%]: .*got f32%[20, 3, 8%], want %[n, 2, 8%].*first text",
      {{k = k}, {k = keys(20, 3, 8, 1)}}, {rank = 2})
    refused("ESHAPE", "q%[0%]: .*got f32%[5, 4, 9%], want %[n, n, 8%]", {{k = k, q = raw.noise({5, 4, 9},
      2)}},
      {rank = 2, query_aware = 1})
    refused("ESHAPE", "multiple of n_kv_heads of k %(got 3 and 2%)", {{k = k, q = raw.noise({5, 3, 8}, 2)}},
      {rank = 2, query_aware = 1})
    refused("EINVAL", "k holds no rows", {{k = k:slice(0, 0, 0)}}, {rank = 2})
    refused("EINVAL", "q holds no rows", {{k = k, q = q:slice(0, 0, 0)}}, {rank = 2, query_aware = 1})
    refused("EDTYPE", "k%[0%]: .*got i32, want f32, f16 or bf16", {{k = tide.buf{dtype = "i32", shape = {2,
      2, 8}}}},
      {rank = 2})
    local bad = raw.host(keys(20, 2, 8, 1))
    bad:slice(0, 7, 1):fill(0 / 0)
    refused("EINVAL", "kv head 0 hold NaN or infinity", {{k = bad}}, {rank = 2})
    local k_map = ffi.new("float[32]", 7)
    local status = lib.tide_calibrate(tide.context():handle(), ffi.new("tide_calibration_settings",
      {rank = 2}), bad._view,
      nil, 1, k_map, nil, nil)
    assert.are.equal(lib.TIDE_EINVAL, status)
    for i = 0, 31 do assert.are.equal(7, k_map[i]) end
    assert.are.equal(lib.TIDE_EINVAL, lib.tide_calibrate(tide.context():handle(), nil, nil, nil, 0, k_map,
      nil, nil))
  end)
end)

describe("calibrated predictors on real keys", function()
  setup(function() raw.open(0) end)

  local kinds = {
    {"PCA max", 0, 0, lib.TIDE_AGGREGATE_MAX}, {"PCA mass", 0, 0, lib.TIDE_AGGREGATE_MASS},
    {"PCA centred mass", 1, 0, lib.TIDE_AGGREGATE_MASS}, {"query-aware max", 1, 1, lib.TIDE_AGGREGATE_MAX},
    {"query-aware mass", 1, 1, lib.TIDE_AGGREGATE_MASS},
  }
  -- The published table calibrated each capture on another text.
  local other = {harbour = "constitution", harbour_long = "constitution", constitution = "harbour_long"}

  local loaded = {}
  local function load(name)
    helper.need_shared("captures/" .. name .. ".safetensors")
    loaded[name] = loaded[name] or assert(capture.load(name))
    return loaded[name]
  end

  local function open(c, maps, kind)
    return assert(raw.predictor{n_blocks = c.n_blocks, n_q_heads = 9, n_kv_heads = 3, head_dim = 64,
      summary = lib.TIDE_SUMMARY_TOKENS, projection = lib.TIDE_PROJECTION_CALIBRATED, rank = maps.rank,
      aggregate = kind[4], k_map = maps.k_map, q_map = maps.q_map,
        k_mean = kind[2] == 1 and maps.k_mean or nil})
  end

  for name, text in pairs(other) do
    it("keep on " .. name .. " what the published table says, within 0.005", function()
      local c, on = load(name), load(text)
      local rows, n = capture.reference()[name], 0
      for _, rank in ipairs {8, 16, 32} do
        for _, kind in ipairs(kinds) do
          local maps = assert(raw.calibrate({on.host}, {rank = rank, centred = kind[2],
            query_aware = kind[3]}))
          local p, row = open(c, maps, kind), rows[("calibrated r=%d %s"):format(rank, kind[1])]
          local kept = capture.kept(c, capture.scores(c, p))
          for i = 1, 3 do
            assert.is_true(math.abs(kept[i] - row[i]) <= 0.005,
              ("r=%d %s: kept %.4f, want %.4f"):format(rank, kind[1],
              kept[i], row[i]))
          end
          -- Near ties move a rank by one place.
          if row[4] ~= "-" then
            assert.is_true(math.abs(tonumber(row[4]) - capture.needle_rank(c, p)) <= 1)
          end
          n = n + 1
          p:close()
        end
      end
      assert.are.equal(15, n)
    end)
  end
end)
