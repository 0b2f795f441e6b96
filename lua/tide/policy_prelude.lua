--- The first thing that runs in the state of a policy, before the script: it takes the FFI, makes the columns
-- and tide.policy.scorer of it, and leaves a sandbox behind.
--
-- No pointer is ever in reach of a script: pointers live in upvalues of the functions here, there is no debug
-- library, and every access is checked against the number of candidates.
-- The host calls the functions that this chunk returns; runtime/policy.h has the struct.

local ffi, jit = require "ffi", require "jit"
local jit_util = require "jit.util"
local error, next, pairs, pcall, rawget, rawset = error, next, pairs, pcall, rawget, rawset
local setmetatable, tostring, type, collectgarbage = setmetatable, tostring, type, collectgarbage
local floor, min, format, byte, sub = math.floor, math.min, string.format, string.byte, string.sub
local concat, sort, insert, select = table.concat, table.sort, table.insert, select
local find, gsub, unpack, getmetatable = string.find, string.gsub, unpack, getmetatable

ffi.cdef [[
struct policy_columns {
  int32_t n, capacity, n_wanted, n_proposed;
  double now;
  const uint64_t *key;
  const double *born, *last_use;
  const int32_t *slot, *index;
  const float *score;
  float *keep;
  int32_t *out;
  uint8_t *chosen;
};
]]
local view = ffi.new "struct policy_columns"
assert(ffi.sizeof "struct policy_columns" == ..., "policy_prelude.lua and policy.h differ in policy_columns")

---------------------------------------------------------------------------------------------- names

-- Edits between two words, to suggest the nearest.
local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local change = diagonal + (byte(a, i) == byte(b, j) and 0 or 1)
      diagonal = row[j]
      row[j] = min(change, row[j] + 1, row[j - 1] + 1)
    end
  end
  return row[#b]
end

-- "(did you mean 'fade'?)", "(want fade, sink)" or "(there are none)".
local function suggestion(name, known)
  local best, least, list = nil, 1 / 0, {}
  for other in pairs(known) do
    local edits = distance(tostring(name), other)
    if edits < least or edits == least and other < best then best, least = other, edits end
    list[#list + 1] = other
  end
  if not best then return "(there are none)" end
  if least <= 2 then return format("(did you mean '%s'?)", best) end
  sort(list)
  return format("(want %s)", concat(list, ", "))
end

---------------------------------------------------------------------------------------------- columns

local n, n_wanted = 0, 0     -- candidates, and places in c.out
local bound = 0              -- the capacity that the pointers below belong to
local binders = {}

local function refuse(name, i, limit)
  if type(i) ~= "number" then error(format("c.%s: want a number as index (got %s)", name, tostring(i)), 3) end
  error(format("c.%s[%s]: out of range (want 0..%d)", name, tostring(i), limit - 1), 3)
end

local function proxy(name, get, set)
  return setmetatable({}, {
    __index = get,
    __newindex = set or function() error(format("c.%s is read-only", name), 2) end,
    __metatable = false,
  })
end

local function readable(name)
  local data
  binders[name] = function() data = view[name] end
  return proxy(name, function(_, i)
    if type(i) == "number" and i >= 0 and i < n then return data[i] end
    refuse(name, i, n)
  end)
end

local function keep_column()
  local data
  binders.keep = function() data = view.keep end
  local function get(_, i)
    if type(i) == "number" and i >= 0 and i < n then return data[i] end
    refuse("keep", i, n)
  end
  return proxy("keep", get, function(_, i, value)
    if not (type(i) == "number" and i >= 0 and i < n) then refuse("keep", i, n) end
    if type(value) ~= "number" then error(format("c.keep[%d]: want a number (got %s)", i, type(value)), 2) end
    data[i] = value
  end)
end

-- What is no int32 is no slot: -1 is refused by the host like any other that is not a candidate's.
local function out_column()
  local data
  binders.out = function() data = view.out end
  local function get(_, i)
    if type(i) == "number" and i >= 0 and i < n_wanted then return data[i] end
    refuse("out", i, n_wanted)
  end
  return proxy("out", get, function(_, i, slot)
    if not (type(i) == "number" and i >= 0 and i < n_wanted) then refuse("out", i, n_wanted) end
    if type(slot) ~= "number" then error(format("c.out[%d]: want a slot (got %s)", i, type(slot)), 2) end
    data[i] = slot >= 0 and slot <= 2147483647 and slot == floor(slot) and slot or -1
  end)
end

local fields = {
  n = 0,
  slot = readable "slot", key = readable "key", index = readable "index", born = readable "born",
  last_use = readable "last_use", score = readable "score", keep = keep_column(), out = out_column(),
}

local function no_column(_, name)
  error(format("c.%s: no such column %s", tostring(name), suggestion(name, fields)), 2)
end

local candidates = setmetatable({}, {
  __index = setmetatable(fields, {__index = no_column}),
  __newindex = function(_, name) error(format("c.%s: write its entries", tostring(name)), 2) end,
  __metatable = false,
})

local function bind()
  if view.capacity == bound then return end
  for _, binder in pairs(binders) do binder() end
  bound = view.capacity
end

---------------------------------------------------------------------------------------------- policies

local known_fields = {name = true, settings = true, score = true, victims = true}

local function is_setting(entry)
  return type(entry) == "table" and type(entry[1]) == "number" and entry[1] == entry[1]
    and type(entry[2]) == "string"
end

local function settings_complaint(settings)
  if type(settings) ~= "table" then return format("settings: want a table (got %s)", type(settings)) end
  for name, entry in pairs(settings) do
    if type(name) ~= "string" then return format("settings: want names as keys (got %s)", tostring(name)) end
    if not is_setting(entry) then return format('settings.%s: want {default, "what it does"}', name) end
  end
end

local function complaint(policy)
  for field in pairs(policy) do
    if not known_fields[field] then
      return format("unknown field '%s' %s", tostring(field), suggestion(field, known_fields))
    end
  end
  if policy.name ~= nil and type(policy.name) ~= "string" then
    return format("name: want a string (got %s)", type(policy.name))
  end
  local hooks = 0
  for _, hook in pairs {"score", "victims"} do
    if policy[hook] ~= nil and type(policy[hook]) ~= "function" then
      return format("%s: want a function (got %s)", hook, type(policy[hook]))
    end
    hooks = hooks + (policy[hook] and 1 or 0)
  end
  if hooks == 0 then return "want a function score or victims (got neither)" end
  if hooks == 2 then return "want one of score and victims (got both)" end
  if policy.settings ~= nil then return settings_complaint(policy.settings) end
end

--- Declares a policy that scores: the candidates with the lowest keep leave first.
-- @tparam table policy name (string), settings ({name = {default, "what it does"}}) and
-- score(c, now, set), which writes c.keep[0 .. c.n - 1]; an entry that it leaves alone is 0
-- @treturn table the same, checked, for the script to return
-- @usage return tide.policy.scorer{name = "lru", score = function(c)
--   for i = 0, c.n - 1 do c.keep[i] = c.last_use[i] end
-- end}
local function scorer(policy)
  if type(policy) ~= "table" then error(format("tide.policy.scorer: want a table (got %s)", type(policy))) end
  return policy
end

---------------------------------------------------------------------------------------------- sandbox

-- What prints an address would tell where memory lies, and decide differently in every process.
local function printable(value)
  local kind = type(value)
  if kind == "table" or kind == "function" then return kind end
  return value
end

local function safe_tostring(value) return tostring(printable(value)) end

local function safe_format(text, ...)
  if type(text) == "string" and find(gsub(text, "%%%%", ""), "%%[-+ #0-9.]*p") then
    error("format: %p is not for policies", 2)
  end
  local values, count = {...}, select("#", ...)
  for i = 1, count do values[i] = printable(values[i]) end
  return format(text, unpack(values, 1, count))
end

-- Only columns and settings have a metatable here; a raw write would hide what it lies over.
local function want_list(what, t)
  if type(t) == "table" and getmetatable(t) ~= nil then
    error(format("%s: want a table of the script's own (got a column)", what), 3)
  end
end

-- A comparison in C, or a position far below 1, may keep C busy for hours, where no watchdog looks: with a
-- comparison in Lua it looks at each.
local function safe_sort(t, less)
  want_list("table.sort", t)
  sort(t, less and function(a, b) return less(a, b) end or function(a, b) return a < b end)
end

local function safe_insert(t, ...)
  want_list("table.insert", t)
  local position = ...
  local within = type(position) ~= "number" or position >= 1 and position <= #t + 1
  if select("#", ...) == 2 and not within then
    error(format("table.insert: position out of range (got %s, want 1..%d)", position, #t + 1), 2)
  end
  return insert(t, ...)
end

-- What filled the memory is garbage once its error is caught; nothing else would collect it in time.
local function caught(ok, ...)
  if not ok and ... == "not enough memory" then collectgarbage() end
  return ok, ...
end

local function safe_pcall(...) return caught(pcall(...)) end

local globals = {
  assert = assert, error = error, ipairs = ipairs, next = next, pairs = pairs, pcall = safe_pcall,
  select = select, tonumber = tonumber, tostring = safe_tostring, type = type, unpack = unpack,
}
local libraries = {bit = require "bit", math = math, table = table, string = string}

-- One call of these may take for ever, or makes bytecode.
for _, name in pairs {"find", "match", "gmatch", "gsub", "rep", "dump"} do libraries.string[name] = nil end

libraries.string.format = safe_format
libraries.table.sort, libraries.table.insert = safe_sort, safe_insert

local everything = getfenv(0)
local of_strings = getmetatable ""

-- What a script finds: fresh tables each time, since it may write to them.
local function furnish()
  for name in pairs(everything) do everything[name] = nil end
  for name, value in pairs(globals) do rawset(everything, name, value) end
  for name, library in pairs(libraries) do
    local copy = {}
    for key, value in pairs(library) do copy[key] = value end
    rawset(everything, name, copy)
  end
  of_strings.__index = everything.string
  rawset(everything, "tide", {policy = {scorer = scorer}})
end

local function no_global(_, name) error(format("no global '%s' in a policy", tostring(name)), 2) end
local function no_new_global(_, name) error(format("global '%s': put local before it", tostring(name)), 2) end

setmetatable(everything, {__index = no_global, __newindex = no_new_global, __metatable = false})

---------------------------------------------------------------------------------------------- decisions

local values, set            -- settings as the host set them, and what the script sees of them
local score, victims         -- the hook of the policy, one of them
local script                 -- the compiled text, to run it anew

local function make_settings(declared)
  values = {}
  for name, entry in pairs(declared or {}) do values[name] = entry[1] end
  local function no_setting(_, name)
    error(format("no setting '%s' %s", tostring(name), suggestion(name, values)), 2)
  end
  set = setmetatable({}, {
    __index = setmetatable(values, {__index = no_setting}),
    __newindex = function() error("settings are set by the host", 2) end,
    __metatable = false,
  })
end

-- Runs the script and keeps what it returns. Answers the policy's name or nil, and what is wrong or nil.
local function adopt(chunk)
  furnish()
  script = chunk
  local policy = chunk()
  if type(policy) ~= "table" then
    return nil, format("the script must end in: return tide.policy.scorer{...} (got %s)", type(policy))
  end
  local wrong = complaint(policy)
  if wrong then return nil, wrong end
  make_settings(policy.settings)
  score, victims = policy.score, policy.victims
  return policy.name
end

local function proposals(count)
  if type(count) ~= "number" or not (count >= 0 and count <= 2147483647) then
    error(format("victims: want how many slots stand in c.out (got %s)", tostring(count)), 0)
  end
  return floor(count)
end

local tier, tenant = 0, 0    -- of the decision: the device tier, and the only tenant

local function decide()
  bind()
  n, n_wanted = view.n, view.n_wanted
  fields.n = n
  if victims then
    view.n_proposed = proposals(victims(candidates, view.now, set, tier, tenant, n_wanted))
  else
    score(candidates, view.now, set)
    view.n_proposed = -1
  end
end

-- Reads or sets a setting. Answers its value, or nil and what is wrong.
local function setting(name, value)
  if not rawget(values, name) then
    return nil, format("no setting '%s' %s", name, suggestion(name, values))
  end
  if value then values[name] = value end
  return values[name]
end

---------------------------------------------------------------------------------------------- compilation

local function compiles()
  local sum = 0
  for i = 1, 1000 do sum = sum + i % 7 end
  return jit.status() and sum > 0 and jit_util.traceinfo(1) ~= nil
end

-- Where every compilation fails after trying, trying costs a thousand times more than interpreting.
local healthy = compiles()
if not healthy then jit.off() end

-- "compiled, 2 traces"; with the place where the compiler gave up, if a loop stays interpreted.
local function verdict(n_traces, gave_up)
  local _, place = next(gave_up)
  local compiled = n_traces > 0 and format("compiled, %d trace%s", n_traces, n_traces == 1 and "" or "s")
  if not place then return compiled or "interpreted: no loop over the candidates" end
  local how = compiled and compiled .. ", in part interpreted" or "interpreted"
  return how .. ": the compiler gave up at " .. place
end

-- Decides once over made-up candidates and watches the compiler, then starts the script anew. Answers how the
-- script runs, and what is wrong with it now or nil.
local function practise()
  local n_traces, gave_up, start = 0, {}, nil
  local function watch(what, _, func, pc)
    if what == "flush" then return end
    local place = jit_util.funcinfo(func, pc)
    local line = place.source and sub(place.source, 2) .. ":" .. (place.currentline or place.linedefined)
    if what == "start" then start = line and line .. "/" .. pc end
    if what == "abort" and start then gave_up[start] = line end
    if what == "stop" and start then gave_up[start], n_traces = nil, n_traces + 1 end
  end
  if healthy then jit.attach(watch, "trace") end
  pcall(decide)
  jit.attach(watch)
  collectgarbage()
  local _, wrong = adopt(script)
  if not healthy then return "interpreted: no trace compiles in this process", wrong end
  return verdict(n_traces, gave_up), wrong
end

return view, adopt, practise, decide, setting
