--- Policies: which blocks should leave. The script runs in a state of its own; C ranks, checks and falls
-- back.
-- @module tide.policy

local ffi = require "ffi"
local lib = require("tide.cdef").lib
local buf = require "tide.buf"
local check = require "tide.check"
local schema = require "tide.schema"

local policy = {}
local methods = {}

local settings = schema.new("policy", {
  path = {"string", doc = "a file that returns a policy"},
  source = {"string", doc = "the text itself"},
  name = {"string", doc = "in errors and in the ledger; default: what the file is called, or policy"},
  level = {"choice", among = {"trusted", "guarded"}, default = "trusted",
    doc = "trusted: a late decision is a fault; guarded: a script that never ends is ended, one a process"},
  budget_us = {"number", default = 5000, min = 1, doc = "time that the script may take for a decision"},
})
policy.settings = settings

-- Columns of a decision, and the element type of each.
local columns = {slot = "int32_t", key = "uint64_t", index = "int32_t", born = "double", last_use = "double",
  score = "float"}
local column_names = {"born", "index", "key", "last_use", "score", "slot"}

local levels = {trusted = lib.TIDE_POLICY_TRUSTED, guarded = lib.TIDE_POLICY_GUARDED}

local function open_status(ctx, values, out)
  local struct = ffi.new("tide_policy_settings", {level = levels[values.level], budget_us = values.budget_us})
  struct.path, struct.source, struct.name = values.path, values.source, values.name
  struct.source_bytes = values.source and #values.source or 0
  return lib.tide_policy_open(ctx:handle(), struct, out)
end

--- Loads a policy.
-- @tparam context ctx
-- @tparam string|table given a path, or a table of path or source, name, level, budget_us
-- @treturn[1] policy
-- @treturn[2] nil the file is missing, or the script is not a policy
-- @treturn[2] string message
-- @treturn[2] string code "EFILE", "EFORMAT", "EUNSUPPORTED"
-- @usage local policy = assert(tide.policy "my_policy.lua")
-- @usage local policy = assert(tide.policy{path = "a_stranger's.lua", level = "guarded", budget_us = 1000})
function policy.load(ctx, given)
  local values = settings:read(type(given) == "string" and {path = given} or given)
  if (values.path == nil) == (values.source == nil) then check.misuse("policy: wants a path or a source") end
  local out = ffi.new "tide_policy *[1]"
  local ok, message, code = check.status(ctx, open_status(ctx, values, out))
  if not ok then return nil, message, code end
  local handle = ffi.gc(out[0], lib.tide_policy_close)
  return setmetatable({ctx = ctx, name = ffi.string(lib.tide_policy_name(handle)), _handle = handle},
    policy.class)
end

local function live(p, what)
  if type(p) ~= "table" or getmetatable(p) ~= policy.class then
    check.misuse("%s: wants a policy before the colon (got %s)", what, check.shown(p))
  end
  if not p._handle then check.misuse("%s: the policy is closed", what) end
  p.ctx:handle()
  return p._handle
end

local integers = {slot = true, index = true}

local function element_of(name, value)
  local what = "policy:victims: " .. name
  if integers[name] then return check.integer(what, value, -2^31, 2^31 - 1) end
  if name == "key" and (ffi.istype("uint64_t", value) or ffi.istype("int64_t", value)) then return value end
  if name == "key" then return check.integer(what, value, 0) end
  check.type(what, value, "number")
  if name ~= "score" and value ~= value then check.misuse("%s: a tick is never NaN", what) end
  return value
end

-- A column as C reads it: its array, and how many elements it has.
local function column(name, value)
  local ctype = ffi.typeof(columns[name] .. "[?]")
  local n = buf.is(value) and value.n or type(value) == "table" and (rawget(value, "n") or #value) or nil
  if not n then
    check.misuse("policy:victims: %s: wants a list or a buffer (got %s)", name, check.shown(value))
  end
  local array = ctype(math.max(n, 1))
  local from = buf.is(value) and assert(value:read()) or value
  local first = rawget(from, "pointer") and 0 or 1
  for i = 0, n - 1 do array[i] = element_of(name, from[i + first]) end
  return array, n
end

--- The slots that should leave.
-- @tparam table given columns of the candidates, by ascending slot: slot, key, index, born, last_use, score;
-- each a list or a buffer, all of one length; one that is missing reads as its default
-- @tparam number now the tick
-- @tparam number n how many should leave
-- @treturn[1] {number,...} slots, first to leave first
-- @treturn[1] table n_rejected, used_fallback, n_strikes, policy_us
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local victims = policy:victims({score = p:score(q), last_use = ticks}, 2322, 100)
function methods:victims(given, now, n)
  local handle = live(self, "policy:victims")
  check.type("policy:victims: now", now, "number")
  check.integer("policy:victims: n", n, 0, 2^31 - 1)
  local candidates, arrays, count = ffi.new "tide_candidates", {}, nil
  for name, value in pairs(check.type("policy:victims: columns", given, "table")) do
    if not columns[name] then
      check.misuse("policy:victims: no column %s; %s", check.shown(name), check.suggest(name, column_names))
    end
    local array, length = column(name, value)
    if count and length ~= count then
      check.misuse("policy:victims: columns differ in length (%s has %d, another %d)", name, length, count)
    end
    count, arrays[name], candidates[name] = length, array, array
  end
  candidates.n = count or 0
  self._arrays = arrays -- C reads them, so the object holds them
  -- What C refuses needs no room.
  local victims, report = ffi.new("int32_t[?]", math.max(math.min(n, count or 0), 1)), ffi.new "tide_decision"
  local ok, message, code = check.status(self.ctx, lib.tide_policy_victims(handle, candidates, now, n,
    victims, report))
  if not ok then return nil, message, code end
  local list = {}
  for i = 1, report.n_victims do list[i] = victims[i - 1] end
  return list, {n_rejected = report.n_rejected, used_fallback = report.used_fallback ~= 0,
    n_strikes = report.n_strikes, policy_us = report.policy_us}
end

--- What the script wrote in the last decision.
-- @treturn ?{number,...} keep of each candidate; nil when no script wrote it
-- @usage local keep = policy:keep()
function methods:keep()
  local n = ffi.new "int32_t[1]"
  local keep = lib.tide_policy_keep(live(self, "policy:keep"), n)
  if keep == nil then return nil end
  local list = {}
  for i = 1, n[0] do list[i] = keep[i - 1] end
  return list
end

--- The last fault, with its traceback.
-- @treturn ?string nil when there was none
-- @usage print(policy:fault() or "no fault")
function methods:fault()
  local text = ffi.string(lib.tide_policy_fault(live(self, "policy:fault")))
  return text ~= "" and text or nil
end

--- Whether the script runs compiled.
-- @treturn string "compiled, 2 traces", or why it is not
-- @usage print(policy:describe())
function methods:describe() return ffi.string(lib.tide_policy_describe(live(self, "policy:describe"))) end

--- Sets a setting of the script.
-- @tparam string name
-- @tparam number value
-- @treturn policy itself
-- @usage policy:set("fade", 0.05)
function methods:set(name, value)
  local handle = live(self, "policy:set")
  check.name("policy:set: name", name)
  check.type("policy:set: value", value, "number")
  local ok, message, code = check.status(self.ctx, lib.tide_policy_set(handle, name, value))
  if not ok then return nil, message, code end
  return self
end

--- A setting of the script.
-- @tparam string name
-- @treturn number
-- @usage print(policy:get "fade")
function methods:get(name)
  local handle, value = live(self, "policy:get"), ffi.new "double[1]"
  check.name("policy:get: name", name)
  local ok, message, code = check.status(self.ctx, lib.tide_policy_get(handle, name, value))
  if not ok then return nil, message, code end
  return value[0]
end

--- Ends it. Again is fine.
-- @usage policy:close()
function methods:close()
  if not self._handle then return end
  lib.tide_policy_close(ffi.gc(self._handle, nil))
  self._handle = nil
end

policy.class = {
  __index = methods,
  __tostring = function(p) return ("policy %s%s"):format(p.name, p._handle and "" or " (closed)") end,
}

return policy
