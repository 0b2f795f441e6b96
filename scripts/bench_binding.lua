-- What a call from Lua costs before any kernel runs: predictor:score over no blocks, in a compiled loop.
-- Run: build/tide scripts/bench_binding.lua
-- Prints: microseconds a call, into a buffer that is given and into a new one.
local tide = require "tide"
local clock = require "tide.clock"

tide.open{device = "cpu"}
local p = assert(tide.predictor{blocks = 4096, q_heads = 32, kv_heads = 8, head_dim = 128})
local q, out = tide.zeros{shape = {32, 128}}, tide.buf{shape = {0}}

local function given(n)
  for _ = 1, n do p:score(q, {n = 0, out = out}) end
end

local function new(n)
  for _ = 1, n do p:score(q, {n = 0}) end
end

-- The least of many short runs: a longer one would count what else the machine did.
local function least_us(f)
  local n, least = 2000, math.huge
  for _ = 1, 200 do
    local start = clock.now()
    f(n)
    least = math.min(least, (clock.now() - start) / n * 1e6)
  end
  return least
end

print(("predictor:score, no blocks: %.2f us into a given buffer, %.2f us into a new one"):format(
  least_us(given), least_us(new)))
