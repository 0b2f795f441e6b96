-- Every variant of every kernel does what its reference does, on the cases of spec/cases/NAME.lua.

local ffi = require "ffi"
local helper = require "spec.helper"
local cdef = require "tide.cdef"
local parity = dofile "spec/parity.lua"
local C = cdef.lib

local families = {"regular", "odd", "empty", "all-invalid", "huge"}

local function names(list)
  local found = {}
  local name = list(0)
  while name ~= nil do
    found[#found + 1] = ffi.string(name)
    name = list(#found)
  end
  return found
end

local contexts = {}
local function context(device)
  if not contexts[device] then
    local out, why = ffi.new "tide_ctx *[1]", ffi.new "char[512]"
    local status = C.tide_ctx_open(ffi.new("tide_ctx_settings", {device = device}), out, why, 512)
    if status ~= 0 then return nil, ffi.string(why) end
    contexts[device] = ffi.gc(out[0], C.tide_ctx_close)
  end
  return contexts[device]
end

-- Where a case file says `ordered`, the cpu variants sum in the reference's order: not one bit of play.
local no_play = setmetatable({}, {__index = function() return function() return 0 end end})
local function bounds_of(file, case, device)
  return device == "cpu" and file.ordered(case) and no_play or file.bounds(case)
end

-- Refusals that are the machine's, not the case's.
local function elsewhere(why) return why:find("runs on ", 1, true) or why:find("needs x86-64", 1, true) end

local function compare_variants(file, kernel, case, device)
  local want, ctx = parity.run(context "cpu", kernel, "ref", case), context(device)
  assert.is_nil(parity.untouched(case, want))
  local bounds, served = bounds_of(file, case, device), 0
  for _, variant in ipairs(names(function(i) return C.tide_kernel_variant(kernel, i) end)) do
    local ok, got, why = pcall(parity.run, ctx, kernel, variant, case)
    if not ok then error(("%s on %s: %s"):format(variant, device, got), 0) end
    if got then
      served = served + 1
      local worst = parity.worst(case, got, want, bounds)
      if worst then
        local where = ("%s on %s, at its worst in %s[%d]"):format(variant, device, worst.output, worst.index)
        error(("%s: %.9g, want %.9g, %.3g times the bound")
          :format(where, worst.got, worst.want, worst.ratio), 0)
      end
    elseif device == "cpu" and not elsewhere(why) then
      assert.is_truthy((case.refused or {})[variant],
        variant .. " refuses a case that does not say so: " .. why)
    end
  end
  assert.is_true(served > 0, "no variant served this on " .. device)
end

describe("every variant equals the reference:", function()
  for _, kernel in ipairs(names(C.tide_kernel_name)) do
    local file = dofile("spec/cases/" .. kernel .. ".lua")(parity)

    it(kernel .. " has cases of every family", function()
      local found = {}
      for _, case in ipairs(file.cases) do found[case.family] = true end
      for _, family in ipairs(families) do assert.is_true(found[family], "no " .. family .. " case") end
    end)

    for _, case in ipairs(file.cases) do
      local title = ("%s, %s, %s"):format(kernel, case.family, case.name)
      it(title .. (case.slow and " #slow" or ""), function()
        compare_variants(file, kernel, case.make and case.make() or case, "cpu")
      end)
      it(title .. ", on a GPU #gpu", function()
        local ctx, why = context "cuda"
        if not ctx then return helper.skip(why) end
        compare_variants(file, kernel, case.make and case.make() or case, "cuda")
      end)
    end
  end
end)
