-- Terminal plots: right shapes, gaps where nothing is finite, ASCII where a terminal shows no more.

local helper = require "spec.helper"

-- Plots in a process of its own, with an environment of its own.
local function plotted(environment, expression)
  local code = ('local plot = require "tide.plot" io.write(%s)'):format(expression)
  local clean = "env -u LC_ALL -u LC_CTYPE -u LANG LUA_PATH='lua/?.lua' "
  local output, status = helper.run(("%s%s luajit -e '%s'"):format(clean, environment, code))
  assert.are.equal(0, status, output)
  return output
end

local utf8 = "LANG=C.UTF-8 TERM=xterm"

describe("a plot #fork", function()
  it("of a few values is a column each, from the least to the largest", function()
    assert.are.equal("▁▃▅█", plotted(utf8, "plot.spark{0, 2, 4, 7}"))
    assert.are.equal("_:=#", plotted("LANG=C TERM=xterm", "plot.spark{0, 2, 4, 7}"))
    assert.are.equal("_:=#", plotted("LANG=C.UTF-8 TERM=dumb", "plot.spark{0, 2, 4, 7}"))
    assert.are.equal("_:=#", plotted("LC_ALL=C LANG=C.UTF-8 TERM=xterm", "plot.spark{0, 2, 4, 7}"))
  end)

  it("leaves a gap where nothing is finite", function()
    assert.are.equal("▁ █ ", plotted(utf8, "plot.spark{0, 0/0, 1, math.huge}"))
    assert.are.equal("  ", plotted(utf8, "plot.spark{0/0, 0/0}"))
    assert.are.equal("", plotted(utf8, "plot.spark{}"))
    assert.are.equal("(nothing finite to plot)", plotted(utf8, "plot.line{0/0}"))
  end)

  it("of many values shows the largest of each run", function()
    local many = "local v = {} for i = 1, 100 do v[i] = 0 end v[51] = 1 "
    local code = ("(function() %s return plot.spark(v, 10) end)()"):format(many)
    assert.are.equal("▁▁▁▁▁█▁▁▁▁", plotted(utf8, code))
  end)

  it("over an index has its extremes at the axis and marks under it", function()
    local text = plotted("LANG=C TERM=xterm",
      'plot.line({1, 2, 4}, {height = 2, title = "scores", marks = {[1] = "answer"}})')
    assert.are.equal(table.concat({
      "scores",
      "        4 |  #",
      "        1 |_=#",
      "            ^ ",
      "           1: answer",
      "           0 2",
    }, "\n"), text)
  end)

  it("by logarithm leaves out what has none", function()
    local text = plotted("LANG=C TERM=xterm", "plot.line({0, 0.01, 1}, {height = 1, log = true})")
    assert.are.equal("        1 | _#\n           0 2", text)
  end)

  it("of named values is a bar each, from 0", function()
    assert.are.equal("mean   #### 0.800\nrandom ## 0.400\nnone    0.000",
      plotted("LANG=C", 'plot.bars({{"mean", 0.8}, {"random", 0.4}, {"none", 0}}, {width = 4})'))
  end)

  it("has no colour where nobody looks, or where it is not wanted", function()
    assert.are.equal("false", plotted(utf8, "tostring(plot.colour())"))
    assert.are.equal("false", plotted(utf8 .. " NO_COLOR=1", "tostring(plot.colour())"))
  end)
end)
