--- Settings tables, checked against a declaration: names, types, ranges, defaults. No table reaches a C
-- struct unchecked.
--
-- A field is {kind, default =, min =, max =, among =, c =, doc =}; kind is "integer", "number", "boolean",
-- "string", "bytes" (a number or "2 GiB"), "choice" (one of among), "shape", "table" or "any"; c names the
-- member of the C struct.
-- @module tide.schema

local check = require "tide.check"

local schema = {}
local methods = {}
local class = {__index = methods}

local units = {B = 1, KiB = 2^10, MiB = 2^20, GiB = 2^30, TiB = 2^40, KB = 1e3, MB = 1e6, GB = 1e9, TB = 1e12}

local function in_range(value, field)
  return value == value and value >= (field.min or -math.huge) and value <= (field.max or math.huge)
end

-- Each kind: value -> value to keep, or nil and what is wanted.
local kinds = {}

function kinds.integer(value, field)
  if type(value) == "number" and value % 1 == 0 and math.abs(value) <= 2^53 and in_range(value, field) then
    return value
  end
  return nil, "an integer" .. check.range_text(field.min, field.max)
end

function kinds.number(value, field)
  if type(value) == "number" and in_range(value, field) then return value end
  return nil, "a number" .. check.range_text(field.min, field.max)
end

function kinds.boolean(value)
  if type(value) == "boolean" then return value end
  return nil, "true or false"
end

function kinds.string(value)
  if type(value) == "string" and not value:find("\0", 1, true) then return value end
  return nil, "a string"
end

function kinds.choice(value, field)
  for _, name in ipairs(field.among) do
    if value == name then return value end
  end
  return nil, "one of " .. table.concat(field.among, " ")
end

function kinds.bytes(value)
  if type(value) == "number" and value >= 0 and value <= 2^53 then return math.floor(value) end
  local count, unit = tostring(value):match("^%s*(%d+%.?%d*)%s*(%a+)%s*$")
  if type(value) == "string" and units[unit] then return math.floor(tonumber(count) * units[unit]) end
  return nil, 'bytes, as a number or as "2 GiB"'
end

function kinds.shape(value)
  local want = "a list of up to 5 extents, each an integer of 0 or more"
  if type(value) ~= "table" or #value > 5 then return nil, want end
  local n = 0
  for key, extent in pairs(value) do
    n = n + 1
    if type(key) ~= "number" or type(extent) ~= "number" or extent % 1 ~= 0 or extent < 0
      or extent > 2^53 then
      return nil, want
    end
  end
  if n ~= #value then return nil, want end
  return value
end

function kinds.table(value)
  if type(value) == "table" then return value end
  return nil, "a table"
end

function kinds.any(value) return value end

--- Declares settings.
-- @tparam string what how messages name them: "predictor"
-- @tparam table fields name -> field
-- @treturn schema
-- @usage local settings = schema.new("buf", {dtype = {"choice", among = dtypes, default = "f32"}})
function schema.new(what, fields)
  local names = {}
  for name in pairs(fields) do names[#names + 1] = name end
  table.sort(names)
  return setmetatable({what = what, fields = fields, names = names}, class)
end

--- Checks a settings table and fills in defaults; misuse raises at the caller's line.
-- @tparam ?table given settings as written; nil is none
-- @treturn table a new table
-- @usage local values = settings:read{dtype = "f16"}
function methods:read(given)
  if given ~= nil and type(given) ~= "table" then
    check.misuse("%s: wants a table of settings (got %s)", self.what, check.shown(given))
  end
  local values = {}
  for name in pairs(given or {}) do self:known(name) end
  for name, field in pairs(self.fields) do
    local value = given and given[name]
    if value == nil then
      value = field.default
      if value == nil and field.required then check.misuse("%s: %s is required", self.what, name) end
    else
      local kept, want = kinds[field[1]](value, field)
      if kept == nil then
        check.misuse("%s: %s has the wrong value (got %s, want %s)", self.what, name, check.shown(value),
          want)
      end
      value = kept
    end
    values[name] = value
  end
  return values
end

--- Raises when a name is none of the declared ones.
-- @param name as written
-- @usage settings:known "dtype"
function methods:known(name)
  if self.fields[name] then return end
  check.misuse("%s: unknown setting %s; %s", self.what, check.shown(name), check.suggest(name, self.names))
end

--- Copies values into the members of a C struct that the fields name.
-- @tparam cdata struct zeroed
-- @tparam table values as read gives them
-- @usage settings:fill(c_settings, values)
function methods:fill(struct, values)
  for name, field in pairs(self.fields) do
    if field.c and values[name] ~= nil then struct[field.c] = values[name] end
  end
end

return schema
