--- Plots in the terminal. Every function returns text; blocks and braille where the locale is UTF-8, ASCII
-- elsewhere.
-- @module tide.plot

local plot = {}

local blocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}
local ascii = {"_", ".", ":", "-", "=", "+", "*", "#"}

--- Whether the terminal shows more than ASCII, by its environment.
-- @treturn boolean
-- @usage if plot.unicode() then print "▁▃▇" end
function plot.unicode()
  if os.getenv "TERM" == "dumb" then return false end
  local locale = os.getenv "LC_ALL"
  if not locale or locale == "" then locale = os.getenv "LC_CTYPE" end
  if not locale or locale == "" then locale = os.getenv "LANG" end
  return (locale or ""):lower():find "utf%-?8" ~= nil
end

--- Whether to colour what goes to standard output: a terminal, and no NO_COLOR.
-- @treturn boolean
-- @usage local s = plot.colour() and "\27[1m" or ""
function plot.colour()
  local refused = os.getenv "NO_COLOR"
  if (refused and refused ~= "") or os.getenv "TERM" == "dumb" then return false end
  local ffi = require "ffi"
  if not pcall(function() return ffi.C.isatty end) then ffi.cdef "int isatty(int fd);" end
  return ffi.C.isatty(1) == 1
end

local function finite(x) return x == x and x < math.huge and x > -math.huge end

-- Least and largest finite value; nil when there is none.
local function extremes(values)
  local least, most
  for i = 1, #values do
    local x = values[i]
    if finite(x) then
      if not least or x < least then least = x end
      if not most or x > most then most = x end
    end
  end
  return least, most
end

-- One value for each of width equal runs, the largest finite one of the run; NaN where there is none.
local function squeeze(values, width)
  if #values <= width then return values end
  local out = {}
  for i = 1, width do
    local best = 0 / 0
    for j = math.floor((i - 1) * #values / width) + 1, math.floor(i * #values / width) do
      if finite(values[j]) and (best ~= best or best < values[j]) then best = values[j] end
    end
    out[i] = best
  end
  return out
end

-- 0 .. 1 between the extremes; 0.5 when all are equal.
local function share(x, least, most) return most > least and (x - least) / (most - least) or 0.5 end

--- A line of small columns; a gap where nothing is finite.
-- @tparam {number,...} values
-- @tparam[opt=24] number width at most so many columns
-- @treturn string
-- @usage print(plot.spark{1, 3, 2, 8})
function plot.spark(values, width)
  values = squeeze(values, width or 24)
  local least, most = extremes(values)
  local levels, out = plot.unicode() and blocks or ascii, {}
  for i = 1, #values do
    out[i] = finite(values[i]) and levels[math.floor(share(values[i], least, most) * 7 + 0.5) + 1] or " "
  end
  return table.concat(out)
end

local function axis_number(x) return ("%9.3g"):format(x) end

-- Columns of a grid, each filled from the bottom: height rows of eighths.
local function column_rows(values, height, least, most)
  local levels, rows = plot.unicode() and blocks or ascii, {}
  local full = levels[8]
  for row = height, 1, -1 do
    local cells = {}
    for i = 1, #values do
      local eighths = finite(values[i]) and math.max(1, math.floor(share(values[i], least,
        most) * height * 8 + 0.5)) or 0
      local here = eighths - (row - 1) * 8
      cells[i] = here >= 8 and full or here >= 1 and levels[here] or " "
    end
    rows[#rows + 1] = table.concat(cells)
  end
  return rows
end

-- Where marks point to, and what they say: two lines under the axis.
local function mark_lines(marks, n, width)
  local arrows, indices = {}, {}
  for i = 1, width do arrows[i] = " " end
  for index in pairs(marks) do indices[#indices + 1] = index end
  table.sort(indices)
  local said = {}
  for _, index in ipairs(indices) do
    local column = math.min(width, math.ceil((index + 1) * width / math.max(n, width)))
    arrows[column] = plot.unicode() and "▲" or "^"
    said[#said + 1] = ("%d: %s"):format(index, tostring(marks[index]))
  end
  return table.concat(arrows), table.concat(said, "   ")
end

local function logarithms(values)
  local out = {}
  for i = 1, #values do out[i] = values[i] > 0 and math.log(values[i]) or 0 / 0 end
  return out
end

--- Values over their index, as filled columns. Each column shows the largest value of its run.
-- @tparam {number,...} values the first has index 0
-- @tparam ?table options width (72), height (8), title, marks ({[index from 0] = text}), log (true: heights
-- by logarithm, for shares that differ by powers of ten; what is not above 0 leaves a gap)
-- @treturn string
-- @usage print(plot.line(scores, {title = "score of every block", marks = {[125] = "the answer"}}))
function plot.line(values, options)
  options = options or {}
  local squeezed = squeeze(options.log and logarithms(values) or values, options.width or 72)
  local least, most = extremes(squeezed)
  if not least then return (options.title and options.title .. "\n" or "") .. "(nothing finite to plot)" end
  local bar = plot.unicode() and "│" or "|"
  local lines = {options.title}
  local rows = column_rows(squeezed, options.height or 8, least, most)
  for i, row in ipairs(rows) do
    local value = i == 1 and most or i == #rows and least
    local label = value and axis_number(options.log and math.exp(value) or value) or (" "):rep(9)
    lines[#lines + 1] = label .. " " .. bar .. row
  end
  local pad = (" "):rep(11)
  if options.marks and next(options.marks) then
    local arrows, said = mark_lines(options.marks, #values, #squeezed)
    lines[#lines + 1] = pad .. arrows
    lines[#lines + 1] = pad .. said
  end
  local last = tostring(#values - 1)
  lines[#lines + 1] = pad .. "0" .. (" "):rep(math.max(1, #squeezed - 1 - #last)) .. last
  return table.concat(lines, "\n")
end

--- Named values as horizontal bars from 0.
-- @tparam {table,...} items each {name, value}
-- @tparam ?table options width (40), format ("%.3f")
-- @treturn string
-- @usage print(plot.bars{{"mean", 0.79}, {"random", 0.72}})
function plot.bars(items, options)
  options = options or {}
  local width, longest, most = options.width or 40, 0, 0
  for _, item in ipairs(items) do
    longest = math.max(longest, #item[1])
    if finite(item[2]) then most = math.max(most, item[2]) end
  end
  local full, lines = plot.unicode() and "█" or "#", {}
  for i, item in ipairs(items) do
    local n = finite(item[2]) and most > 0 and math.max(0, math.floor(item[2] / most * width + 0.5)) or 0
    lines[i] = item[1] .. (" "):rep(longest - #item[1] + 1) .. full:rep(n) .. " "
      .. (options.format or "%.3f"):format(item[2])
  end
  return table.concat(lines, "\n")
end

return plot
