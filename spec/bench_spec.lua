-- tide bench: what it says of a run, and of two. Times are never a test.

local helper = require "spec.helper"
local bench = require "tide.bench"

local function result(cases)
  local list = {}
  for name, c in pairs(cases) do list[#list + 1] = {name = name, us = c[2], low = c[1], high = c[3]} end
  return {cases = list}
end

describe("bench.compare", function()
  it("flags a case only where the middle halves of both runs are apart", function()
    local before = result {apart = {9, 10, 11}, touching = {9, 10, 11}, gone = {1, 1, 1}}
    local after = result {apart = {12, 13, 14}, touching = {11, 12, 13}, new = {1, 1, 1}}
    local found = {}
    for _, d in ipairs(bench.compare(before, after)) do found[d.name] = d end
    assert.is_true(found.apart.beyond)
    assert.is_true(math.abs(found.apart.change - 0.3) < 1e-12)
    assert.is_false(found.touching.beyond)
    assert.is_nil(found.gone)
    assert.is_nil(found.new)
  end)
end)

describe("tide bench", function()
  it("refuses a case that does not exist and names those that do", function()
    local text, code = helper.run(helper.program .. " bench score_min")
    assert.are.equal(2, code)
    assert.is_truthy(text:find("no such case 'score_min' (want project_batched project_block", 1, true))
  end)

  it("refuses what is no result to compare with", function()
    local text, code = helper.run(helper.program .. " bench --against LICENSE project_q")
    assert.are.equal(2, code)
    assert.is_truthy(text:find("not JSON", 1, true))
  end)

  it("measures a case and its ceilings, and compares with itself #slow", function()
    local path = os.tmpname()
    local command = helper.program .. " bench --device cpu --seconds 0.01 project_q "
    local _, code = helper.run(command .. "--json 2>/dev/null > " .. path)
    assert.are.equal(0, code)
    local found = require("cjson").decode(helper.read(path))
    assert.is_true(found.ceilings.read_gbs > 0 and found.ceilings.copy_gbs > 0)
    assert.are.equal("project_q", found.cases[1].name)
    assert.is_true(found.cases[1].low <= found.cases[1].us and found.cases[1].us <= found.cases[1].high)
    local text = helper.run(command .. "--against " .. path)
    os.remove(path)
    assert.is_truthy(text:find("against " .. path, 1, true))
    assert.is_truthy(text:find("project_q .*%%"))
  end)
end)
