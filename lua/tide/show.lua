--- A buffer as people read it.
-- @module tide.show

local plot = require "tide.plot"

local show = {}

local function number(x)
  if x ~= x then return "nan" end
  return x % 1 == 0 and math.abs(x) < 1e15 and ("%.0f"):format(x) or ("%.4g"):format(x)
end

local function place(flat, shape)
  local at = {}
  for d = #shape, 1, -1 do
    at[d] = flat % shape[d]
    flat = (flat - at[d]) / shape[d]
  end
  return "(" .. table.concat(at, ",") .. ")"
end

--- Shape, device, extremes, mean, NaN count and a small picture, in one line. Waits.
-- @tparam buf b
-- @treturn string
-- @usage print(show.line(s)) --> buf f32[145] cpu  min 1.2e-06  mean 0.0069  max 0.31  ▁▁▂▁▇▁▂
function show.line(b)
  local text = tostring(b)
  local stats = b._handle and not b.ctx:closed() and b:describe()
  if not stats or stats.n == 0 then return text end
  local parts = {text, "min " .. number(stats.min), "mean " .. number(stats.mean), "max "
    .. number(stats.max)}
  if stats.n_nan > 0 then parts[#parts + 1] = ("nan %d"):format(stats.n_nan) end
  if stats.n_inf > 0 then parts[#parts + 1] = ("inf %d"):format(stats.n_inf) end
  parts[#parts + 1] = plot.spark(stats.bins)
  return table.concat(parts, "  ")
end

-- The first and last elements of the last dimension at a row of the others.
local function elements(b, at)
  local row = b
  for _ = 1, b.n_dims - 1 do row = row[at == "last" and row.shape[1] - 1 or 0] end
  local n, shown = row.shape[1], {}
  local array = assert(row:read())
  for i = 0, math.min(n, 4) - 1 do shown[#shown + 1] = number(array[i]) end
  if n > 5 then shown[#shown + 1] = "..." end
  if n > 4 then shown[#shown + 1] = number(array[n - 1]) end
  return table.concat(shown, "  ")
end

--- One screen about a buffer. Waits.
-- @tparam buf b
-- @treturn string
-- @usage print(show.buffer(s))
function show.buffer(b)
  local stats = b._handle and not b.ctx:closed() and b:describe()
  if not stats or stats.n == 0 then return show.line(b) end
  local lines = {tostring(b), ("  min %s at %s   max %s at %s   mean %s   nan %d   inf %d   zero %d"):format(
    number(stats.min), place(math.max(stats.min_at, 0), b.shape), number(stats.max),
    place(math.max(stats.max_at, 0), b.shape), number(stats.mean), stats.n_nan, stats.n_inf, stats.n_zero),
    "  " .. plot.spark(stats.bins)}
  if b.n_dims > 0 then
    lines[#lines + 1] = "  first  " .. elements(b, "first")
    if b.n_dims > 1 then lines[#lines + 1] = "  last   " .. elements(b, "last") end
  end
  return table.concat(lines, "\n")
end

return show
