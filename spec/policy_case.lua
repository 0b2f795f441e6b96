--- Policies for specs, through the C functions: load, decide, look.
local ffi = require "ffi"
local lib = require("tide.cdef").lib

local case = {}

--- A context of its own, on the cpu; settings as in tide_ctx_settings.
function case.context(settings)
  local out, message = ffi.new "tide_ctx *[1]", ffi.new "char[512]"
  local status = lib.tide_ctx_open(ffi.new("tide_ctx_settings", settings or {}), out, message, 512)
  assert(status == 0, ffi.string(message))
  return out[0]
end

function case.message(ctx) return ffi.string(lib.tide_errmsg(ctx)) end

local function outcome(ctx, status, out)
  if status ~= 0 then return nil, ffi.string(lib.tide_status_name(status)), case.message(ctx) end
  lib.tide_policy_budget(out[0], 60e6) -- a busy machine is no fault
  return out[0]
end

--- The policy, or nil, status and message. The default budget is out of the way.
function case.load(ctx, source, name)
  local out = ffi.new "tide_policy *[1]"
  return outcome(ctx, lib.tide_policy_load(ctx, name or "mine", source, #source, out), out)
end

--- With any settings of tide_policy_settings, and no budget but theirs.
function case.open(ctx, settings)
  local out = ffi.new "tide_policy *[1]"
  settings.source_bytes = settings.source and #settings.source
  local status = lib.tide_policy_open(ctx, ffi.new("tide_policy_settings", settings), out)
  if status ~= 0 then return nil, ffi.string(lib.tide_status_name(status)), case.message(ctx) end
  return out[0]
end

function case.load_file(ctx, path)
  local out = ffi.new "tide_policy *[1]"
  return outcome(ctx, lib.tide_policy_load_file(ctx, path, out), out)
end

local ctypes = {slot = "int32_t[?]", key = "uint64_t[?]", index = "int32_t[?]", born = "double[?]",
  last_use = "double[?]", score = "float[?]"}

--- The slots that leave, as a list, and the report; or nil, status, message. columns: n, and lists by name.
function case.victims(ctx, policy, columns, n_wanted, now)
  local candidates, anchors = ffi.new("tide_candidates", {n = columns.n}), {}
  for name, ctype in pairs(ctypes) do
    if columns[name] then
      anchors[name] = ffi.new(ctype, math.max(columns.n, 1), columns[name])
      candidates[name] = anchors[name]
    end
  end
  local out, report = ffi.new("int32_t[?]", math.max(n_wanted, 1)), ffi.new "tide_decision"
  local status = lib.tide_policy_victims(policy, candidates, now or 0, n_wanted, out, report)
  if status ~= 0 then return nil, ffi.string(lib.tide_status_name(status)), case.message(ctx) end
  local slots = {}
  for j = 0, report.n_victims - 1 do slots[j + 1] = out[j] end
  return slots, report
end

function case.fault(policy) return ffi.string(lib.tide_policy_fault(policy)) end
function case.describe(policy) return ffi.string(lib.tide_policy_describe(policy)) end

--- Bytes that the ledger says are held.
function case.held(ctx)
  local lines, n = ffi.new "tide_mem_line[64]", ffi.new "int32_t[1]"
  assert(lib.tide_mem_lines(ctx, lines, 64, n) == 0)
  local bytes = 0
  for i = 0, n[0] - 1 do bytes = bytes + tonumber(lines[i].bytes) end
  return bytes
end

--- The source of a scorer with this body; c, now, set are its arguments.
function case.scorer(body, settings)
  return ("return tide.policy.scorer{settings = %s, score = function(c, now, set)\n%s\nend}")
    :format(settings or "{}", body)
end

return case
