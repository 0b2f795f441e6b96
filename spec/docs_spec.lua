-- The reference and the prompt's help come from the comments: each public function has a line, types and an
-- example.

local helper = require "spec.helper"

-- The modules behind require "tide"; the program's own are not an interface.
local modules = {"init", "context", "array", "buf", "predictor", "attend", "calibrate", "kernel", "policy",
  "mem",
  "plot", "show",
  "safetensors", "check", "schema", "cdef"}

-- Public functions of a source text: {name, parameters, the comment above}.
local function functions_of(text)
  local list, comment = {}, {}
  for line in (text .. "\n"):gmatch("([^\n]*)\n") do
    local name, parameters = line:match("^function ([%w_.:]+)%((.-)%)")
    if line:find("^%-%-") then
      comment[#comment + 1] = line
    else
      if name and not name:find("__", 1, true) and not name:find("^kinds%.") then
        list[#list + 1] = {name = name, parameters = parameters, comment = table.concat(comment, "\n")}
      end
      comment = {}
    end
  end
  return list
end

local function complaint(f)
  if not f.comment:find("^%-%-%- %S") then return "no line that says what it does" end
  if not f.comment:find("@usage", 1, true) then return "no example" end
  for parameter in f.parameters:gmatch("[%w_.]+") do
    local escaped = parameter:gsub("%p", "%%%0")
    local tagged = f.comment:find("@tparam%S* %S+ " .. escaped .. "%f[%W]")
      or f.comment:find("@param " .. escaped .. "%f[%W]") or parameter == "..."
        and f.comment:find("@param ...", 1, true)
    if not tagged then return "no tag for " .. parameter end
  end
end

-- The text between two fences of the README that begins with these words.
local function block_of_readme(beginning)
  for block in helper.read("README.md"):gmatch "\n```%w*\n(.-\n)```" do
    if block:sub(1, #beginning) == beginning then return block end
  end
end

describe("the README", function()
  it("shows the predictors as the demo prints them, whatever the figures", function()
    local printed = {}
    local text, code = helper.run(helper.program .. " scripts/rank_blocks.lua spec/data/harbour.safetensors")
    assert.are.equal(0, code, text)
    for line in text:gsub("%d", "#"):gmatch "[^\n]+" do printed[#printed + 1] = line end
    local n = 0
    for line in assert(block_of_readme "predictor "):gsub("%d", "#"):gmatch "[^\n]+" do
      local found = false
      for _, other in ipairs(printed) do found = found or other:sub(1, #line) == line end
      assert.is_true(found, line)
      n = n + 1
    end
    assert.is_true(n >= 8)
  end)

  it("shows keep_mass.lua whole, but for its comments", function()
    local file = helper.read("lua/tide/policy/keep_mass.lua"):gsub("%f[^\n%z]%s*%-%-[^\n]*\n", "")
    assert.are.equal(file, block_of_readme "return tide.policy.scorer")
  end)
end)

describe("the documentation", function()
  it("sees a function that has none", function()
    local found = functions_of("--- Does it.\n-- @tparam number a\n-- @usage f(1)\nfunction m.f(a, b)\nend\n")
    assert.are.equal(1, #found)
    assert.are.equal("no tag for b", complaint(found[1]))
    assert.are.equal("no line that says what it does", complaint(functions_of("function m.f()\nend")[1]))
  end)

  for _, module in ipairs(modules) do
    it("has a line, types and an example for every function of " .. module, function()
      local found = functions_of(helper.read("lua/tide/" .. module .. ".lua"))
      assert.is_true(#found > 0)
      for _, f in ipairs(found) do
        assert.is_nil(complaint(f), f.name)
      end
    end)
  end
end)
