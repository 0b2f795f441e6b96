-- tide predictor compare and tide calibrate: the figures that a user chooses a predictor by.

local helper = require "spec.helper"
local cjson = require "cjson"
local reference = require "spec.reference"

local harbour = "spec/data/harbour.safetensors"

local function compare(arguments)
  local text, code = helper.run(helper.program .. " predictor compare " .. arguments)
  assert.are.equal(0, code, text)
  return text
end

local function rows_of(arguments)
  local by_id, decoded = {}, cjson.decode(compare(arguments .. " --json --device cpu"))
  for _, row in ipairs(decoded.predictors) do by_id[row.id] = row end
  return by_id, decoded
end

local exact = {"oracle", "keys-max", "recent", "minmax-max", "minmax-mass", "mean-mass", "calibrated-32-mass",
  "calibrated-16-mass", "calibrated-8-mass", "query-aware-16-mass"}
local random = {"random-32-max", "random-16-max", "random-32-mass", "random-16-mass"}

local function matches_reference(capture, path, calibration)
  reference.need(helper)
  local by_id = rows_of(path .. " --calibrate-on " .. calibration)
  for _, id in ipairs(exact) do
    reference.assert_near(capture, by_id[id], 0.005)
    local rank = reference.rank(capture, id)
    if rank then assert.is_true(math.abs(rank - by_id[id].needle_ranks[1]) <= math.max(1, 0.1 * rank), id) end
  end
  for _, id in ipairs(random) do reference.assert_near(capture, by_id[id], reference.random_bound(id)) end
end

describe("tide predictor compare", function()
  it("has the reference's figures on harbour, calibrated on another text", function()
    matches_reference("harbour", harbour, helper.need_shared "captures/constitution.safetensors")
  end)

  it("has them on harbour_long", function()
    matches_reference("harbour_long", helper.need_shared "captures/harbour_long.safetensors",
      helper.need_shared "captures/constitution.safetensors")
  end)

  it("has them on a text whose question the model gets wrong #slow", function()
    matches_reference("constitution", helper.need_shared "captures/constitution.safetensors",
      helper.need_shared "captures/harbour_long.safetensors")
  end)

  it("leaves calibrated rows out where there is nothing to calibrate on, and says so", function()
    local by_id = rows_of(harbour)
    assert.is_nil(by_id["calibrated-32-mass"])
    assert.is_truthy(by_id["mean-mass"])
    assert.is_truthy(compare(harbour):find("--calibrate-on FILE", 1, true))
  end)

  it("judges as many of the last rows as asked", function()
    local few, all = rows_of(harbour .. " --rows 4"), rows_of(harbour .. " --rows 100000")
    assert.is_truthy(compare(harbour .. " --rows 100000"):find("; the last 512 rows\n", 1, true))
    assert.are_not.equal(few.oracle.kept_10, all.oracle.kept_10)
    assert.is_true(all.oracle.kept_10 > 0.5 and all.oracle.kept_10 < 1)
  end)

  it("draws each predictor that has a size into the plot, over an axis of bytes", function()
    local text = compare(harbour)
    local plot = text:match "kept at 10 %% against bytes.-\n(.*)$"
    for _, mark in ipairs {"K", "0", "R", "Q", "M"} do
      assert.is_truthy(plot:find("│[^\n]*" .. mark), mark)
    end
    assert.is_truthy(plot:match "\n +0 +8 +16 +32 +64 +128 ")
  end)

  it("prints nothing about progress where nobody looks on", function()
    assert.is_falsy(compare(harbour):find("\27", 1, true))
  end)

  it("refuses a file of other tensors", function()
    local path = os.tmpname()
    local save = [[-e 'local tide = require "tide" assert(tide.save(..., {x = tide.zeros{shape = {4}}}))']]
    local text, code = helper.run(("%s %s %s && %s predictor compare %s"):format(helper.program, save, path,
      helper.program, path))
    os.remove(path)
    assert.are.equal(1, code)
    assert.is_truthy(text:find("not a capture: no tensor q (want q, k and v; it has x)", 1, true), text)
  end)
end)

describe("tide calibrate", function()
  it("writes a file that a predictor takes, and refuses it at another rank with both named", function()
    local path = os.tmpname()
    local calibrate = helper.program .. " calibrate --rank 8 --centred --query-aware "
    local text, code = helper.run(calibrate .. harbour .. " -o " .. path)
    assert.are.equal(0, code, text)
    text, code = helper.run(helper.program .. [[ -e '
      local tide = require "tide"
      local path = ...
      local function open(rank)
        return tide.predictor{blocks = 4, q_heads = 9, kv_heads = 3, head_dim = 64, summary = "tokens",
          projection = {calibrated = path, rank = rank}}
      end
      print(assert(open(8)):sizes().rank)
      print(select(2, open(16)))
    ' ]] .. path)
    os.remove(path)
    assert.is_truthy(text:match "^8\n", text)
    assert.is_truthy(text:match "rank 8.*16", text)
    assert.are.equal(0, code)
  end)

  it("writes nothing when it fails", function()
    local text, code = helper.run(helper.program .. " calibrate configure.lua -o no_file; ls no_file")
    assert.are.equal(2, code)
    assert.is_truthy(text:find("not a safetensors file", 1, true), text)
  end)
end)
