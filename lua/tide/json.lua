--- JSON for `--json`. lua-cjson writes strings; numbers are written here, as it refuses NaN and cuts integers
-- at 14 digits. Keys are sorted, so equal values give equal texts.
-- @module tide.json

local ffi = require "ffi"

local json = {}

local integer, natural = ffi.typeof "int64_t", ffi.typeof "uint64_t"

local function encode_number(value)
  if value ~= value or value == math.huge or value == -math.huge then return "null" end
  if value == math.floor(value) and math.abs(value) <= 2 ^ 53 then return ("%.0f"):format(value) end
  return ("%.14g"):format(value)
end

local function encode_cdata(value)
  if not (ffi.istype(integer, value) or ffi.istype(natural, value)) then
    error("json: a cdata that is no 64-bit integer: " .. tostring(value), 0)
  end
  return (tostring(value):gsub("U?LL$", ""))
end

local encode

local function encode_table(value)
  local parts = {}
  if #value > 0 then
    for i = 1, #value do parts[i] = encode(value[i]) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = tostring(key) end
  table.sort(keys)
  for i, key in ipairs(keys) do parts[i] = encode(key) .. ":" .. encode(value[key]) end
  return "{" .. table.concat(parts, ",") .. "}"
end

local encoders = {
  number = encode_number, cdata = encode_cdata, table = encode_table, boolean = tostring,
  ["nil"] = function() return "null" end,
  string = function(value) return (require("cjson").encode(value)) end,
}

--- A Lua value as JSON: NaN and infinities become null, integers keep all their digits.
-- @param value nil, boolean, number, string, 64-bit integer, or a table of these with keys 1..n or strings
-- @treturn string
-- @usage json.encode{kept = 0/0} --> {"kept":null}
function json.encode(value)
  local encoder = encoders[type(value)] or error("json: a " .. type(value) .. " cannot be written", 2)
  return encoder(value)
end

encode = json.encode

return json
