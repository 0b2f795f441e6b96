--- tide devices
local lib = require("tide.cdef").lib

local devices = {
  summary = "the devices of this machine, and why an absent one is absent",
  example = "  tide devices\n  tide devices --json",
}

local cpu_levels = {
  [lib.TIDE_CPU_PLAIN] = "plain C", [lib.TIDE_CPU_V3] = "x86-64-v3", [lib.TIDE_CPU_V4] = "x86-64-v4",
}

--- A device in one line.
-- @tparam table d as context.devices gives it
-- @treturn string
function devices.line(d)
  if not d.usable then return ("%-8s absent: %s"):format(d.name, d.why_absent) end
  if d.name == "null" then return ("%-8s accounts, moves nothing"):format(d.name) end
  local unit, level = "multiprocessors", "sm_" .. d.capability
  if d.name == "cpu" then unit, level = "cores", cpu_levels[d.capability] end
  local gib = 2 ^ 30
  local memory = ("%.1f GiB"):format(d.total_bytes / gib)
  if d.free_bytes > 0 then memory = ("%.1f of %s free"):format(d.free_bytes / gib, memory) end
  return ("%-8s %s, %d %s, %s, %s"):format(d.name, d.model, d.processors, unit, level, memory)
end

function devices.options() end

function devices.run(options)
  local found = require("tide.context").devices()
  if options.json then return print(require("tide.json").encode {devices = found}) end
  for _, d in ipairs(found) do print(devices.line(d)) end
end

return devices
