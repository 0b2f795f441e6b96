-- The demo on a real prompt: its numbers against a table that was computed elsewhere, and what it prints.

local helper = require "spec.helper"
local cjson = require "cjson"
local reference = require "spec.reference"

local demo = helper.program .. " scripts/rank_blocks.lua spec/data/harbour.safetensors"

describe("the demo", function()
  local found, by_id = nil, {}

  setup(function()
    local text, code = helper.run(demo .. " --json --device cpu")
    assert.are.equal(0, code, text)
    found = cjson.decode(text)
    for _, row in ipairs(found.predictors) do by_id[row.id] = row end
  end)

  it("ranks by the oracle, exact keys, recency, min/max and the mean key as the reference does", function()
    reference.need(helper)
    for _, id in ipairs {"oracle", "keys-max", "recent", "minmax-max", "minmax-mass", "mean-mass"} do
      reference.assert_near("harbour", by_id[id], 0.005)
    end
  end)

  it("ranks by a random P about as the reference's seeds do, with the spread of five seeds", function()
    reference.need(helper)
    for _, id in ipairs {"random-32-max", "random-16-max", "random-32-mass", "random-16-mass"} do
      assert.are.equal(5, #by_id[id].runs)
      reference.assert_near("harbour", by_id[id], reference.random_bound(id))
    end
  end)

  -- The rows of this generator (seeds 0xCAFEF00D .. 0xCAFEF011): a change of P or of the score is seen.
  it("keeps the random rows where they were", function()
    local rows = {
      ["random-32-max"] = {0.627, 0.719, 0.815}, ["random-16-max"] = {0.613, 0.670, 0.760},
      ["random-32-mass"] = {0.629, 0.722, 0.814}, ["random-16-mass"] = {0.612, 0.669, 0.767},
    }
    for id, kept in pairs(rows) do
      assert.is_near(kept[1], by_id[id].kept_5, 0.002)
      assert.is_near(kept[2], by_id[id].kept_10, 0.002)
      assert.is_near(kept[3], by_id[id].kept_20, 0.002)
    end
  end)

  it("calibrates on the first half of the prompt itself, and beats a random P with it", function()
    for _, rank in ipairs {32, 16} do
      local calibrated = by_id[("calibrated-%d-mass"):format(rank)]
      local random = by_id[("random-%d-mass"):format(rank)]
      assert.is_true(calibrated.kept_10 > random.kept_10 + 0.05)
    end
    assert.is_truthy(by_id["calibrated-8-mass"] and by_id["query-aware-16-mass"])
  end)

  it("counts the bytes of each summary per token and kv head", function()
    local bytes = {["keys-max"] = 128, ["recent"] = 0, ["random-32-max"] = 64, ["random-16-mass"] = 32,
      ["calibrated-8-mass"] = 16, ["minmax-mass"] = 16, ["mean-mass"] = 8}
    for id, want in pairs(bytes) do assert.are.equal(want, by_id[id].bytes_per_token, id) end
  end)

  it("finds the block with the answer first by the mean key", function()
    assert.are.same({0}, by_id["mean-mass"].needle_ranks)
    assert.are.equal(125, found.needle.first_block)
    assert.is_truthy(found.needle.text:find("silver flute", 1, true))
  end)

  it("lets a policy of at most 30 lines keep a fifth of the blocks, the answer among them", function()
    local policy = found.policy
    assert.is_nil(policy.fault)
    assert.is_true(policy.n_lines <= 30)
    assert.are.equal(math.floor(0.2 * found.n_blocks), #policy.kept)
    assert.is_true(found.needle.kept)
    assert.are.equal(0, policy.kept[1])
    for i = 2, #policy.kept do assert.is_true(policy.kept[i] > policy.kept[i - 1]) end
  end)

  -- A script under test that never came back took the demo with it.
  it("goes on when a policy never ends, by tail-first LRU, and says so", function()
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write("return tide.policy.scorer{name = 'stuck', score = function(c, now)\n",
      "  while now > 0 and c.n < 1000 do end\nend}\n")
    file:close()
    local text, code = helper.run(demo .. " --json --device cpu --policy " .. path)
    os.remove(path)
    assert.are.equal(0, code, text)
    local policy = cjson.decode(text).policy
    assert.is_truthy(policy.fault:find("it took more time than its budget", 1, true), policy.fault)
    assert.are.equal(math.floor(0.2 * found.n_blocks), #policy.kept)
    assert.are.equal(found.policy.n_complete - 1, policy.kept[#policy.kept])
  end)

  it("measures what attention loses by the policy, as mass and as cosines", function()
    local policy = found.policy
    assert.is_true(policy.cosine_least < policy.cosine_mean and policy.cosine_mean < 1)
    assert.is_near(0.810, policy.cosine_mean, 0.002)
    assert.is_near(0.197, policy.cosine_least, 0.002)
    assert.is_near(0.768, policy.mass, 0.002)
  end)

  it("takes another policy: tail-first LRU keeps less", function()
    local text, code = helper.run(demo .. " --json --device cpu --policy lua/tide/policy/lru.lua")
    assert.are.equal(0, code, text)
    local policy = cjson.decode(text).policy
    assert.are.equal(#found.policy.kept, #policy.kept)
    assert.is_true(policy.mass < found.policy.mass)
  end)

  it("prints the device, the table, the plot with the answer's block and its text, and the policy", function()
    local text, code = helper.run(demo .. " --device cpu")
    assert.are.equal(0, code, text)
    assert.is_truthy(text:match "^tide %S+ on cpu ")
    local at = 1
    local in_order = {
      "question  What did the stranger", "mean key, mass", "125: the block with the answer",
      "paid for his passage with a silver flute", "keep_mass.lua", "29 of 141 blocks stay", "cosine",
      "the answer      kept:",
    }
    for _, words in ipairs(in_order) do
      local from, to = text:find(words, at, true)
      assert.is_truthy(from, words .. " is missing or out of order in\n" .. text)
      at = to
    end
  end)

  it("refuses a capture without an answer, and a policy that is none, in one line", function()
    local text, code = helper.run(demo:gsub("spec/data/harbour.safetensors", "configure.lua"))
    assert.are.equal(1, code)
    assert.is_truthy(text:match "^rank_blocks: configure.lua: [^\n]+\n$", text)
    text, code = helper.run(demo .. " --policy nope.lua")
    assert.are.equal(2, code)
    assert.is_truthy(text:match "^rank_blocks: nope.lua: [^\n]+\n$", text)
  end)
end)

describe("the demo on a GPU #gpu", function()
  it("has the numbers of the cpu", function()
    local function rows(device)
      local text, code = helper.run(demo .. " --json --device " .. device)
      assert.are.equal(0, code, text)
      return cjson.decode(text)
    end
    local cpu, cuda = rows "cpu", rows "cuda:0"
    assert.are.equal("cuda:0", cuda.device)
    for i, row in ipairs(cpu.predictors) do
      for _, share in ipairs {"kept_5", "kept_10", "kept_20"} do
        assert.is_near(row[share], cuda.predictors[i][share], 0.002)
      end
    end
    assert.are.same(cpu.policy.kept, cuda.policy.kept)
    assert.is_near(cpu.policy.cosine_mean, cuda.policy.cosine_mean, 1e-3)
  end)
end)
