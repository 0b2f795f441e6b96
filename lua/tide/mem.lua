--- The ledger: who holds how much of which device.
-- @module tide.mem

local ffi = require "ffi"
local lib = require("tide.cdef").lib
local check = require "tide.check"

local mem = {}

local tiers = {[lib.TIDE_TIER_DEVICE] = "device", [lib.TIDE_TIER_HOST] = "host",
  [lib.TIDE_TIER_DISK] = "disk",
  [lib.TIDE_TIER_REMOTE] = "remote"}

--- The ledger, largest first.
-- @tparam context ctx
-- @treturn {table,...} each label, setting (what scales it), device, tier, bytes, peak_bytes; tostring gives
-- a table
-- @usage print(tide.mem())
function mem.lines(ctx)
  local n = ffi.new "int32_t[1]"
  check.status(ctx, lib.tide_mem_lines(ctx:handle(), nil, 0, n))
  local lines = ffi.new("tide_mem_line[?]", math.max(n[0], 1))
  check.status(ctx, lib.tide_mem_lines(ctx:handle(), lines, n[0], n))
  local list = {}
  for i = 0, n[0] - 1 do
    local line = lines[i]
    list[i + 1] = {
      label = ffi.string(line.label), setting = ffi.string(line.setting), device = ctx._names[line.device],
      tier = tiers[line.tier], bytes = tonumber(line.bytes), peak_bytes = tonumber(line.peak_bytes),
    }
  end
  return setmetatable(list, mem.class)
end

--- A size for people.
-- @tparam number bytes
-- @treturn string "3.88 GiB"
-- @usage print(require("tide.mem").text(2^20))
function mem.text(bytes)
  local units, unit = {"B", "KiB", "MiB", "GiB", "TiB"}, 1
  while bytes >= 1024 and unit < #units do bytes, unit = bytes / 1024, unit + 1 end
  return (unit == 1 and "%.0f %s" or "%.2f %s"):format(bytes, units[unit])
end

mem.class = {
  __tostring = function(list)
    local rows = {}
    for i, line in ipairs(list) do
      rows[i] = ("%-8s %10s  peak %10s  %s (%s)"):format(line.device, mem.text(line.bytes),
        mem.text(line.peak_bytes),
        line.label, line.setting)
    end
    return #rows > 0 and table.concat(rows, "\n") or "nothing is held"
  end,
}

return mem
