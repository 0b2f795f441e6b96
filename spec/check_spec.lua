-- The two ways to fail: misuse raises at the line that made the mistake; what the world refuses is returned.

local check = require "tide.check"
local schema = require "tide.schema"
local tide = require "tide"

local function line() return debug.getinfo(2, "l").currentline end

describe("misuse", function()
  it("is raised at the caller's line, however deep it was found", function()
    local at = line() + 1
    local ok, message = pcall(function() tide.buf{shape = {2, -1}} end)
    assert.is_false(ok)
    assert.is_truthy(message:find(("check_spec.lua:%d: buf: shape"):format(at), 1, true), message)
  end)

  it("is raised at the caller's line when C found it", function()
    local b = tide.zeros{shape = {4}, device = "cpu"}
    local at = line() + 1
    local _, message = pcall(function() return b:slice(0, 3, 5) end)
    assert.is_truthy(message:find(("check_spec.lua:%d: slice: out of range"):format(at), 1, true), message)
  end)

  it("names the nearest setting", function()
    local _, message = pcall(tide.buf, {shpae = {1}})
    assert.is_truthy(message:find('unknown setting "shpae"; did you mean "shape"?', 1, true), message)
  end)

  it("names the nearest function", function()
    local _, message = pcall(function() return tide.predicter end)
    assert.is_truthy(message:find('no such function "predicter"; did you mean "predictor"?', 1, true),
      message)
  end)

  it("lists what there is when nothing is near", function()
    assert.is_nil(check.nearest("zzzzzz", {"shape", "dtype"}))
    assert.are.equal("want one of dtype shape", check.suggest("zzzzzz", {"dtype", "shape"}))
  end)
end)

describe("what the world refuses", function()
  it("is nil, a sentence and a code", function()
    local ctx, message, code = tide.open{device = "cuda:200"}
    assert.is_nil(ctx)
    assert.are.equal("string", type(message))
    assert.are.equal("EDEVICE", code)
  end)

  it("names what an allocation needs, what is free and what to lower", function()
    local ctx = assert(require("tide.context").open{device = "cpu", device_limit = "1 MiB"})
    local b, message, code = ctx:buf{shape = {1024, 1024}}
    assert.is_nil(b)
    assert.are.equal("EMEM", code)
    for _, part in ipairs {"4.00 MiB", "1.00 MiB", "shape"} do assert.is_truthy(message:find(part, 1, true),
      message) end
    ctx:close()
  end)
end)

describe("a settings table", function()
  local settings = schema.new("thing", {
    count = {"integer", min = 1, max = 8, default = 4}, size = {"bytes"}, kind = {"choice", among = {"a",
      "b"}},
    share = {"number", min = 0, max = 1}, on = {"boolean"}, shape = {"shape"}, name = {"string"},
    must = {"integer", required = true},
  })
  local function refused(given, part)
    given.must = given.must or 1
    local ok, message = pcall(settings.read, settings, given)
    assert.is_false(ok, part)
    assert.is_truthy(message:find(part, 1, true), message)
  end

  it("gets its defaults", function()
    local values = settings:read{must = 2}
    assert.are.equal(4, values.count)
    assert.is_nil(values.size)
  end)

  it("takes sizes as people write them", function()
    assert.are.equal(2 * 2^30, settings:read{must = 1, size = "2 GiB"}.size)
    assert.are.equal(1.5 * 2^20, settings:read{must = 1, size = "1.5MiB"}.size)
    assert.are.equal(7, settings:read{must = 1, size = 7}.size)
  end)

  -- The FFI turns 2.9 into 2, "10" into 10 and 1e10 into -2147483648 without a word.
  it("refuses what the FFI would convert in silence", function()
    refused({count = 2.9}, "count has the wrong value (got 2.9, want an integer in 1..8)")
    refused({count = "4"}, "count has the wrong value")
    refused({count = 1e10}, "count has the wrong value")
    refused({count = 0 / 0}, "count has the wrong value")
    refused({on = 1}, "on has the wrong value (got 1, want true or false)")
    refused({name = 3}, "name has the wrong value")
    refused({name = "a\0b"}, "name has the wrong value")
  end)

  it("refuses what is out of range or unknown", function()
    refused({count = 9}, "count has the wrong value")
    refused({share = 1.5}, "share has the wrong value")
    refused({share = 0 / 0}, "share has the wrong value")
    refused({kind = "c"}, "want one of a b")
    refused({size = "2 GB of it"}, "size has the wrong value")
    refused({size = -1}, "size has the wrong value")
    refused({shape = {1, 2.5}}, "shape has the wrong value")
    refused({shape = {1, nil, 3}}, "shape has the wrong value")
    refused({shape = {1, 2, 3, 4, 5, 6}}, "shape has the wrong value")
    refused({cuont = 3}, 'did you mean "count"?')
  end)

  it("says what is required", function()
    local ok, message = pcall(settings.read, settings, {})
    assert.is_false(ok)
    assert.is_truthy(message:find("thing: must is required", 1, true), message)
  end)

  it("refuses what is no table", function()
    local ok, message = pcall(settings.read, settings, 3)
    assert.is_false(ok)
    assert.is_truthy(message:find("thing: wants a table of settings (got 3)", 1, true), message)
  end)
end)
