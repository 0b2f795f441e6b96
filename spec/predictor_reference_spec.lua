-- Predictors on a real model's queries and keys: kept attention mass and needle rank, against the published
-- table.
local helper = require "spec.helper"
local capture = require "spec.capture"
local evaluate = require "tide.evaluate"
local raw = require "spec.raw"
local lib = raw.lib

local names = {"harbour", "harbour_long", "constitution"}

-- What the table calls them: summary and aggregate of the identity.
local exact = {
  ["max dot exact keys"] = {lib.TIDE_SUMMARY_TOKENS, lib.TIDE_AGGREGATE_MAX},
  ["mean key mass"] = {lib.TIDE_SUMMARY_MEAN, lib.TIDE_AGGREGATE_MASS},
  ["quest max"] = {lib.TIDE_SUMMARY_MINMAX, lib.TIDE_AGGREGATE_MAX},
  ["quest mass"] = {lib.TIDE_SUMMARY_MINMAX, lib.TIDE_AGGREGATE_MASS},
}

-- The rows of this project, harbour's for those who have the project only.
local harbour = {
  ["max dot exact keys"] = {0.7090, 0.8315, 0.9020, "0"},
  ["mean key mass"] = {0.6923, 0.7889, 0.8721, "0"},
  ["quest max"] = {0.6306, 0.7056, 0.8239, "21"},
  ["quest mass"] = {0.6221, 0.7200, 0.8256, "20"},
  ["oracle (true mass)"] = {0.7199, 0.8501, 0.9196, "0"},
  ["recent + sink only"] = {0.6049, 0.6326, 0.7615, "15"},
}

local loaded = {}
local function load(name)
  loaded[name] = loaded[name] or capture.load(name)
  if not loaded[name] then helper.need_shared("captures/" .. name .. ".safetensors") end
  return loaded[name]
end

local function reference(name)
  if name == "harbour" then return harbour end
  helper.need_shared "captures/reference.tsv"
  return capture.reference()[name]
end

local function open(c, summary, aggregate, fields)
  local settings = {n_blocks = c.n_blocks, n_q_heads = 9, n_kv_heads = 3, head_dim = 64, summary = summary,
    aggregate = aggregate}
  for name, value in pairs(fields or {}) do settings[name] = value end
  return assert(raw.predictor(settings))
end

local function assert_kept(want, got, what)
  for i, share in ipairs(capture.shares) do
    assert.is_true(math.abs(want[i] - got[i]) <= 0.005, ("%s at %g: kept %.4f, want %.4f"):format(what,
      share, got[i],
      want[i]))
  end
end

describe("the published table", function()
  setup(function() raw.open(0) end)

  it("of harbour is what this file says", function()
    helper.need_shared "captures/reference.tsv"
    for predictor, row in pairs(capture.reference().harbour) do
      if harbour[predictor] then assert.are.same(row, harbour[predictor]) end
    end
  end)

  for _, name in ipairs(names) do
    it("holds on " .. name .. " for exact keys, mean keys and bounds, within 0.005", function()
      local c, rows = load(name), reference(name)
      for predictor, kind in pairs(exact) do
        local p = open(c, kind[1], kind[2])
        assert_kept(rows[predictor], capture.kept(c, capture.scores(c, p)), predictor)
        if rows[predictor][4] ~= "-" then
          assert.are.equal(tonumber(rows[predictor][4]), capture.needle_rank(c, p), predictor)
        end
        p:close()
      end
    end)

    it("holds on " .. name .. " for the true mass and for recency alone", function()
      local c, rows = load(name), reference(name)
      local mass, stride = capture.mass(c)
      assert_kept(rows["oracle (true mass)"], capture.kept(c, mass, stride), "oracle")
      local recent = {}
      for row = 0, capture.n_rows - 1 do
        for block = 0, c.n_blocks - 1 do recent[row * c.n_blocks + block] = block end
      end
      assert_kept(rows["recent + sink only"], capture.kept(c, recent), "recent")
      if rows["recent + sink only"][4] ~= "-" then
        assert.are.equal(tonumber(rows["recent + sink only"][4]), evaluate.needle_rank(recent,
          c.file:number "answer_row", c.n_blocks, c.file:number "needle_first", c.file:number "needle_last"))
      end
    end)
  end
end)

describe("a random projection on real keys", function()
  setup(function() raw.open(0) end)

  -- capture, predictor, seed (above 0xCAFEF00D), kept at 5, 10 and 20 %, needle rank
  local function committed(name)
    local rows = {}
    for line in helper.read "spec/data/random_rows.tsv":gmatch "[^\n]+" do
      local of, aggregate, rank, seed, a, b, c, needle =
        line:match "^(%S+)\t(low%-rank ?%a*) r=(%d+)\t(%d)\t(%S+)\t(%S+)\t(%S+)\t(%S+)$"
      if of == name then
        rows[#rows + 1] = {predictor = aggregate .. " r=" .. rank, rank = tonumber(rank),
          seed = tonumber(seed),
          aggregate = aggregate == "low-rank" and lib.TIDE_AGGREGATE_MAX or lib.TIDE_AGGREGATE_MASS,
          kept = {tonumber(a), tonumber(b), tonumber(c)}, needle = tonumber(needle)}
      end
    end
    return rows
  end

  for _, name in ipairs(names) do
    it("keeps on " .. name .. " what it kept when the rows were committed, within 0.005", function()
      local c, rows = load(name), committed(name)
      assert.are.equal(20, #rows)
      for _, row in ipairs(rows) do
        local p = open(c, lib.TIDE_SUMMARY_TOKENS, row.aggregate, {projection = lib.TIDE_PROJECTION_RANDOM,
          rank = row.rank, seed = 0xCAFEF00D + row.seed})
        assert_kept(row.kept, capture.kept(c, capture.scores(c, p)), row.predictor .. " seed " .. row.seed)
        -- Ranks far down hang on near ties; the first few do not.
        if row.needle and row.needle < 5 then
          assert.is_true(math.abs(row.needle - capture.needle_rank(c, p)) <= 1)
        end
        p:close()
      end
    end)

    -- The table's five maps came from another generator, and a mean of five seeds still scatters: by 0.01 to
    -- 0.015 at rank 16 on harbour, where the two means lie 0.037 apart; everywhere else they agree within
    -- 0.03.
    it("on " .. name .. " keeps what the table's five other seeds keep", function()
      helper.need_shared "captures/reference.tsv"
      local table_rows, means, n = capture.reference()[name], {}, 0
      for _, row in ipairs(committed(name)) do
        means[row.predictor] = means[row.predictor] or {0, 0, 0}
        for i = 1, 3 do means[row.predictor][i] = means[row.predictor][i] + row.kept[i] / 5 end
      end
      for predictor, mean in pairs(means) do
        local bound = name == "harbour" and predictor:find "r=16" and 0.04 or 0.03
        for i = 1, 3 do
          n = n + 1
          assert.is_true(math.abs(mean[i] - table_rows[predictor][i]) <= bound,
            ("%s: %.4f, table %.4f"):format(predictor, mean[i], table_rows[predictor][i]))
        end
      end
      assert.are.equal(12, n)
    end)
  end

  it("ranks by mass alike with and without centring, for a softmax does not see a shift", function()
    local c = load "harbour"
    local mean = assert(raw.calibrate({c.host}, {rank = 1, centred = 1})).k_mean
    for _, rank in ipairs {16, 32} do
      local fields = {projection = lib.TIDE_PROJECTION_RANDOM, rank = rank}
      local plain = open(c, lib.TIDE_SUMMARY_TOKENS, lib.TIDE_AGGREGATE_MASS, fields)
      fields.k_mean = mean
      local centred = open(c, lib.TIDE_SUMMARY_TOKENS, lib.TIDE_AGGREGATE_MASS, fields)
      assert_kept(capture.kept(c, capture.scores(c, plain)), capture.kept(c, capture.scores(c, centred)),
        "centred")
      plain:close()
      centred:close()
    end
  end)
end)
