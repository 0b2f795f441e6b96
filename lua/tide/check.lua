--- The two ways to fail: misuse raises at the caller's line, what the world refuses returns nil, message,
-- code.
-- @module tide.check

local ffi = require "ffi"
local lib = require("tide.cdef").lib

local check = {}

local here = debug.getinfo(1, "S").source:match("^(.*)check%.lua$")

-- The first level of the stack that is neither C nor a file of this module: where the mistake was written.
local function callers_position()
  for level = 3, 60 do
    local info = debug.getinfo(level, "Sl")
    if not info then return "" end
    if info.what ~= "C" and info.source:sub(1, #here) ~= here then
      return ("%s:%d: "):format(info.short_src, info.currentline)
    end
  end
  return ""
end

--- Raises an error at the line outside of tide that led here.
-- @tparam string format as string.format
-- @param ... its values
-- @usage check.misuse("slice: dim out of range (got %d, want 0..%d)", dim, n - 1)
function check.misuse(format, ...)
  error(callers_position() .. (select("#", ...) > 0 and format:format(...) or format), 0)
end

-- Edits (insert, delete, replace, swap neighbours) that turn a into b.
local function distance(a, b)
  local before, row = {}, {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local last = row
    row = {[0] = i}
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      row[j] = math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        row[j] = math.min(row[j], before[j - 2] + 1)
      end
    end
    before = last
  end
  return row[#b]
end

--- The name most like a given one, or nil when none is.
-- @tparam string name what was written
-- @tparam {string,...} names what may be written
-- @treturn ?string the nearest name
-- @usage check.nearest("blok_size", {"block_size", "blocks"}) --> "block_size"
function check.nearest(name, names)
  local best, least = nil, math.max(2, math.floor(#name / 3)) + 1
  for _, candidate in ipairs(names) do
    local d = distance(name, candidate)
    if d < least then best, least = candidate, d end
  end
  return best
end

--- The end of a message about an unknown name: the nearest one, or all there are.
-- @tparam string name what was written
-- @tparam {string,...} names what may be written
-- @treturn string "did you mean ..." or "want one of ..."
-- @usage check.misuse("dtype: unknown \"%s\"; %s", name, check.suggest(name, dtypes))
function check.suggest(name, names)
  local near = type(name) == "string" and check.nearest(name, names)
  if near then return ('did you mean "%s"?'):format(near) end
  return #names > 0 and "want one of " .. table.concat(names, " ") or "there are none"
end

--- A value as it would be written, short, for messages.
-- @param value anything
-- @treturn string
-- @usage check.shown "x" --> "x" with its quotes
function check.shown(value)
  if type(value) == "string" then
    return (("%q"):format(#value > 40 and value:sub(1, 37) .. "..." or value):gsub("\\\n", "\\n"))
  end
  if type(value) == "table" then return getmetatable(value) and tostring(value) or "a table" end
  if type(value) == "function" then return "a function" end
  return tostring(value)
end

--- An integer within a range, or misuse.
-- @tparam string what the argument, as messages name it: "buffer:slice: first"
-- @param value what was given
-- @tparam[opt] number min least
-- @tparam[opt] number max most
-- @treturn number value
-- @usage local i = check.integer("buffer: index", i, 0, n - 1)
function check.integer(what, value, min, max)
  if type(value) ~= "number" or value % 1 ~= 0 or value < (min or -2^53) or value > (max or 2^53) then
    check.misuse("%s: wants an integer%s (got %s)", what, check.range_text(min, max), check.shown(value))
  end
  return value
end

--- " in 0..7", " of 1 or more", or nothing.
-- @tparam[opt] number min least
-- @tparam[opt] number max most
-- @treturn string
-- @usage check.range_text(1, 128) --> " in 1..128"
function check.range_text(min, max)
  if min and max then return (" in %.14g..%.14g"):format(min, max) end
  if min then return (" of %.14g or more"):format(min) end
  return max and (" of at most %.14g"):format(max) or ""
end

--- A value of a Lua type, or misuse.
-- @tparam string what the argument, as messages name it
-- @param value what was given
-- @tparam string want a name as type() gives it
-- @return value
-- @usage check.type("tide.load: path", path, "string")
function check.type(what, value, want)
  if type(value) ~= want then check.misuse("%s: wants a %s (got %s)", what, want, check.shown(value)) end
  return value
end

--- A name for C, which ends at the first zero byte: a string without one, or misuse.
-- @tparam string what the argument, as messages name it
-- @param value what was given
-- @treturn string value
-- @usage check.name("tide.load: path", path)
function check.name(what, value)
  if type(value) ~= "string" or value:find("\0", 1, true) then
    check.misuse("%s: wants a string without zero bytes (got %s)", what, check.shown(value))
  end
  return value
end

local function to_pointer(value)
  local box = ffi.new "const void *[1]"
  box[0] = value
  return box[0]
end

--- The address that a cdata is or has, or misuse: a number would be taken for an address, a file for memory.
-- @tparam string what the argument, as messages name it
-- @tparam cdata value a pointer, an array or a struct
-- @treturn cdata void *
-- @usage local data = check.pointer("tide.wrap: pointer", pointer)
function check.pointer(what, value)
  local ok, pointer = pcall(to_pointer, type(value) == "cdata" and value or 0)
  if not ok then check.misuse("%s: wants a pointer or a C array (got %s)", what, check.shown(value)) end
  return ffi.cast("void *", pointer)
end

-- What the world refuses; everything else is a mistake in the calling script.
local refusals = {
  [lib.TIDE_EMEM] = "EMEM", [lib.TIDE_EDEVICE] = "EDEVICE", [lib.TIDE_EFILE] = "EFILE",
  [lib.TIDE_EFORMAT] = "EFORMAT", [lib.TIDE_EUNSUPPORTED] = "EUNSUPPORTED", [lib.TIDE_ESCRIPT] = "ESCRIPT",
}

--- Turns a status into true, into nil, message, code, or into a raised misuse.
-- @tparam number status what the C function returned
-- @tparam string message its sentence
-- @treturn[1] boolean true
-- @treturn[2] nil refused by the world
-- @treturn[2] string message
-- @treturn[2] string code, "EMEM"
-- @usage local ok, message, code = check.outcome(status, error_text)
function check.outcome(status, message)
  if status == 0 then return true end
  local code = refusals[status]
  if code then return nil, message, code end
  check.misuse("%s", message)
end

--- As outcome, with the sentence of the context.
-- @tparam context ctx where the call was made
-- @tparam number status what the C function returned
-- @treturn[1] boolean true
-- @treturn[2] nil refused by the world
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local ok, message, code = check.status(ctx, lib.tide_sync(ctx._handle, 0, nil))
function check.status(ctx, status)
  if status == 0 then return true end
  local code = refusals[status]
  local message = ffi.string(lib.tide_errmsg(ctx._handle))
  if code then return nil, message, code end
  check.misuse("%s", message)
end

--- Calls a C function that allocates; when memory is refused, collects what Lua still holds and calls once
-- more. Two collections: the first runs finalisers, the second frees what they kept.
-- @tparam function f returns a status
-- @param ... its arguments
-- @treturn number status
-- @usage local status = check.allocating(lib.tide_buf_new, ctx._handle, settings, out)
function check.allocating(f, ...)
  local status = f(...)
  if status ~= lib.TIDE_EMEM then return status end
  collectgarbage()
  collectgarbage()
  return f(...)
end

return check
