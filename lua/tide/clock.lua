--- Wall time.
-- @module tide.clock

local ffi = require "ffi"

local clock = {}

ffi.cdef [[
typedef struct tide_timespec { long seconds, nanoseconds; } tide_timespec;
int clock_gettime(int which, tide_timespec *out);
]]

local monotonic = 1
local at = ffi.new "tide_timespec"

--- Seconds since some moment; never steps back.
-- @treturn number
-- @usage local started = clock.now()
function clock.now()
  ffi.C.clock_gettime(monotonic, at)
  return tonumber(at.seconds) + tonumber(at.nanoseconds) * 1e-9
end

return clock
