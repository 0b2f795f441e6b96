--- Values as the prompt prints them: one screen, never a whole buffer.
-- @module tide.pretty

local pretty = {}

local most_entries = 20

local function quoted(text)
  if #text > 400 then text = text:sub(1, 400) .. "..." end
  return '"' .. text:gsub('[%c"\\]', function(c)
    if c == "\n" then return "\\n" end
    return c:byte() < 32 and ("\\%d"):format(c:byte()) or "\\" .. c
  end) .. '"'
end

local function has_own_text(value)
  local class = debug.getmetatable(value)
  return type(class) == "table" and rawget(class, "__tostring") ~= nil
end

local function brief(value)
  if type(value) == "string" then return quoted(value) end
  if type(value) == "number" then return ("%.14g"):format(value) end
  if type(value) ~= "table" or has_own_text(value) then return tostring(value) end
  return next(value) == nil and "{}" or "{...}"
end

local function sorted_keys(tbl)
  local keys = {}
  for key in next, tbl do
    local in_list = type(key) == "number" and key >= 1 and key <= #tbl and key == math.floor(key)
    if not in_list then keys[#keys + 1] = key end
  end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end

local function key_text(key)
  if type(key) == "string" and key:match "^[%a_][%w_]*$" then return key end
  return "[" .. brief(key) .. "]"
end

local function entry_lines(tbl, depth, lines)
  local margin = ("  "):rep(depth)
  local left = most_entries
  local function add(label, value)
    left = left - 1
    if type(value) == "table" and not has_own_text(value) and depth < 3 and next(value) ~= nil then
      lines[#lines + 1] = margin .. label .. "{"
      entry_lines(value, depth + 1, lines)
      lines[#lines + 1] = margin .. "},"
    else
      lines[#lines + 1] = margin .. label .. brief(value) .. ","
    end
  end
  local keys = sorted_keys(tbl)
  for i = 1, math.min(#tbl, left) do add("", rawget(tbl, i)) end
  for _, key in ipairs(keys) do
    if left <= 0 then break end
    add(key_text(key) .. " = ", rawget(tbl, key))
  end
  local hidden = #tbl + #keys - most_entries
  if hidden > 0 then lines[#lines + 1] = ("%s... %d more"):format(margin, hidden) end
end

local function one_line(lines)
  local text = "{" .. table.concat(lines, " ", 2, #lines - 1):gsub("^%s+", ""):gsub("%s%s+", " ")
  return (text:gsub(",%s*}", "}"):gsub("{%s+", "{"):gsub(",$", "") .. "}")
end

--- A value as text.
-- @treturn string
-- @usage pretty.text{1, 2, name = "x"} --> {1, 2, name = "x"}
function pretty.text(value)
  if type(value) ~= "table" or has_own_text(value) then return brief(value) end
  local lines = {"{"}
  entry_lines(value, 1, lines)
  lines[#lines + 1] = "}"
  local short = one_line(lines)
  if #short <= 100 then return short end
  return table.concat(lines, "\n")
end

--- Prints a value: a buffer with its statistics and a small picture, anything else as text.
-- @param value
-- @tparam ?boolean short one line each, as one of several results
function pretty.print(value, short)
  if not short and require("tide.buf").is(value) then return value:show() end
  print(pretty.text(value))
end

return pretty
