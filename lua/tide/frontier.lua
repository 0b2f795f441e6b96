--- Quality against bytes in the terminal: a letter a predictor, a line over what nothing cheaper beats.
-- @module tide.frontier

local frontier = {}

local width, height = 64, 14

-- Bytes double from column group to column group; 0 has a column of its own.
local function column_of(bytes, most)
  if bytes <= 0 then return 1 end
  local left, octaves = 10, math.max(1, math.log(most / 4) / math.log(2))
  local x = left + (width - left) * math.max(0, math.log(bytes / 4) / math.log(2)) / octaves
  return math.min(width, math.floor(x + 0.5))
end

-- The best quality that so many bytes or fewer buy, by column.
local function best_by_column(points)
  local best, highest = {}, -math.huge
  for x = 1, width do
    for _, point in ipairs(points) do
      if point.x == x then highest = math.max(highest, point.y) end
    end
    best[x] = highest
  end
  return best
end

local function bounds(points)
  local least, most, bytes = math.huge, -math.huge, 8
  for _, point in ipairs(points) do
    least, most = math.min(least, point.quality), math.max(most, point.quality)
    bytes = math.max(bytes, point.bytes)
  end
  return least, math.max(most - least, 1e-3), bytes
end

local function place(points, least, span, most_bytes)
  local placed = {}
  for i, point in ipairs(points) do
    local y = math.floor((point.quality - least) / span * (height - 1) + 0.5) + 1
    placed[i] = {x = column_of(point.bytes, most_bytes), y = y, mark = point.mark}
  end
  return placed
end

local function draw(placed)
  local grid = {}
  for y = 1, height do
    grid[y] = {}
    for x = 1, width do grid[y][x] = " " end
  end
  for x, y in ipairs(best_by_column(placed)) do
    if y > 0 then grid[y][x] = "·" end
  end
  for _, point in ipairs(placed) do grid[point.y][point.x] = point.mark end
  return grid
end

local function axis(most_bytes)
  local cells = {}
  for x = 1, width do cells[x] = " " end
  local function tick(bytes)
    local text = tostring(bytes)
    local x = math.min(column_of(bytes, most_bytes), width - #text + 1)
    for i = 1, #text do cells[x + i - 1] = text:sub(i, i) end
  end
  tick(0)
  local bytes = 8
  while bytes <= most_bytes do
    tick(bytes)
    bytes = bytes * 2
  end
  return table.concat(cells)
end

--- Draws it.
-- @tparam {table,...} points each bytes, quality (0..1), mark (one letter)
-- @treturn string
-- @usage print(frontier.text{{bytes = 8, quality = 0.79, mark = "M"}})
function frontier.text(points)
  local least, span, most_bytes = bounds(points)
  local grid = draw(place(points, least, span, most_bytes))
  local lines = {}
  for y = height, 1, -1 do
    lines[#lines + 1] = ("  %.2f │%s"):format(least + (y - 1) / (height - 1) * span, table.concat(grid[y]))
  end
  lines[#lines + 1] = "       └" .. ("─"):rep(width)
  lines[#lines + 1] = "        " .. axis(most_bytes) .. "  bytes per token and kv head"
  return table.concat(lines, "\n")
end

return frontier
