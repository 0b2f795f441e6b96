--- What Tab offers at the prompt. Looks at tables and class tables only: nobody's __index runs.
-- @module tide.complete

local complete = {}

local keywords = {
  "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
  "not", "or", "repeat", "return", "then", "true", "until", "while",
}

-- Methods by class, of the modules that keep the two apart (an __index that is a function cannot be asked).
local function methods_of(class)
  for name, module in pairs(package.loaded) do
    if name:match "^tide%." and type(module) == "table" and rawget(module, "class") == class then
      return rawget(module, "methods")
    end
  end
end

-- The tables in which Lua itself would look, as long as they are tables.
local function chain(value)
  local tables = {}
  while value ~= nil and #tables < 16 do
    if type(value) == "table" then tables[#tables + 1] = value end
    local class = debug.getmetatable(value)
    if type(class) ~= "table" then break end
    value = rawget(class, "__index")
    if type(value) ~= "table" then value = methods_of(class) end
  end
  return tables
end

--- Sorted names (identifiers) that tables hold.
-- @treturn {string,...}
function complete.names(...)
  local seen, names = {}, {}
  for _, tbl in ipairs {...} do
    for key in pairs(tbl) do
      if type(key) == "string" and key:match "^[%a_][%w_]*$" and not seen[key] then
        seen[key] = true
        names[#names + 1] = key
      end
    end
  end
  table.sort(names)
  return names
end

local function field(value, name)
  for _, tbl in ipairs(chain(value)) do
    local found = rawget(tbl, name)
    if found ~= nil then return found end
  end
end

-- "tide.buf" -> the value; nil as soon as a part is unknown.
local function resolve(names, path)
  local value
  for name in path:gmatch "[%a_][%w_]*" do
    if value == nil then
      value = rawget(names, name)
      if value == nil then value = rawget(_G, name) end
    else
      value = field(value, name)
    end
    if value == nil then return nil end
  end
  return value
end

-- What is made on first use has a table of its names beside its __index, or the value has it in a field that
-- stands there. What begins with _ is nobody's business until it is asked for.
local function members(value, prefix, only_functions)
  local tables, class, found = chain(value), debug.getmetatable(value), {}
  local lazy = type(class) == "table" and rawget(class, "names")
  if type(lazy) == "string" then lazy = rawget(value, lazy) end
  if type(lazy) == "table" and not only_functions then tables[#tables + 1] = lazy end
  local hidden = prefix:sub(1, 1) == "_" and "^__" or "^_"
  for _, name in ipairs(complete.names(unpack(tables))) do
    if not name:match(hidden) and (not only_functions or type(field(value, name)) == "function") then
      found[#found + 1] = name
    end
  end
  return found
end

local function with_prefix(list, prefix, head)
  local found = {}
  for _, name in ipairs(list) do
    if name:sub(1, #prefix) == prefix then found[#found + 1] = head .. name end
  end
  return found
end

local function files(prefix)
  local found = {}
  local pipe = io.popen("ls -dp -- '" .. prefix:gsub("'", "'\\''") .. "'* 2>/dev/null")
  for path in pipe:lines() do found[#found + 1] = path end
  pipe:close()
  return found
end

--- Candidates for a word of a line.
-- @tparam table names the session's own names
-- @tparam string line
-- @tparam int from bytes before the word
-- @tparam int to bytes before its end
-- @treturn {string,...} whole words, sorted
function complete.candidates(names, line, from, to)
  local word = line:sub(from + 1, to)
  local quote = line:sub(from, from)
  if from > 0 and (quote == "'" or quote == '"') then return files(word) end
  local head, mark, prefix = word:match "^([%a_][%w_.]*)([.:])([%w_]*)$"
  if head then
    local value = resolve(names, head)
    if value == nil then return {} end
    return with_prefix(members(value, prefix, mark == ":"), prefix, head .. mark)
  end
  local all = complete.names(names, _G)
  for _, keyword in ipairs(keywords) do all[#all + 1] = keyword end
  table.sort(all)
  return with_prefix(all, word, "")
end

return complete
