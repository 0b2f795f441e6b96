-- Compiled code looks at no hook: of eight programs that never end, a watchdog that sets one stopped one.
-- Each spec has a process of its own, since the guard takes SIGPROF, and a failure would never end.

local helper = require "spec.helper"

local program = "LUA_PATH='lua/?.lua;lua/?/init.lua;./?.lua' LUA_CPATH=%s/lib/?.so "
  .. "timeout 60 luajit -e '%s'"

local prologue = [[
  local case, lib = require "spec.policy_case", require("tide.cdef").lib
  local ctx = case.context()
  local function open(source)
    local guarded = lib.TIDE_POLICY_GUARDED
    return case.open(ctx, {source = source, name = "wild", level = guarded, budget_us = 20000})
  end
]]

local function run(script) return helper.run(program:format(helper.build, prologue .. script)) end

describe("a guarded policy", function()
  local runaways = {
    ["an empty loop"] = "while true do end",
    ["a loop that computes"] = "local x = 0 while true do x = x + 1 end",
    ["a loop over columns"] = "for i = 0, 1e15 do c.keep[i % c.n] = i end",
    ["a loop that allocates"] = "while true do local t = {} t[1] = now end",
    ["endless tail calls"] = "local function f() return f() end f()",
    ["a loop that swallows errors"] = "while true do pcall(function() while true do end end) end",
    ["thousands of nested pcalls"] = "local function f() pcall(f) while true do end end f()",
    ["a comparison without end"] = "table.sort({1, 2, 3}, function() while true do end end)",
  }
  for name, body in pairs(runaways) do
    it("ends " .. name .. ", twice, and decides in between #fork", function()
      local output = run(([[
        local policy = assert(open(case.scorer "if now == 1 then %s end c.keep[0] = 1"))
        for _ = 1, 2 do
          local slots, report = case.victims(ctx, policy, {n = 2}, 1, 1)
          print(slots[1], report.used_fallback, case.fault(policy):match "[^\n]*")
          slots, report = case.victims(ctx, policy, {n = 2}, 1, 2)
          print(slots[1], report.used_fallback)
        end
        lib.tide_policy_close(policy)
        lib.tide_ctx_close(ctx)]]):format(body))
      local once = "1\t1\tstopped: it took more time than its budget\n1\t0\n"
      assert.are.equal(once .. once, output)
    end)
  end

  -- Without a comparison all of a sort ran in C, where no watchdog looks: 0.4 s late for half a million
  -- numbers, hours for numbers in the order that quicksort likes least.
  it("ends a sort that has no comparison of its own #fork", function()
    local output = run [[
      local policy = assert(open [=[
        local t = {}
        for i = 1, 5e5 do t[i] = i * 7919 % 500009 end
        local function score(_, now) if now == 1 then table.sort(t) end end
        return tide.policy.scorer{score = score}]=])
      case.victims(ctx, policy, {n = 2}, 1, 1)
      local fault = case.fault(policy)
      print(fault:match "[^\n]*", fault:find("in function .sort.") ~= nil)
      lib.tide_policy_close(policy)
      lib.tide_ctx_close(ctx)]]
    assert.are.equal("stopped: it took more time than its budget\ttrue\n", output)
  end)

  it("cannot run away at load either, in its text or in its practice #fork", function()
    local output = run [[
      for _, source in ipairs {"while true do end", case.scorer "while true do end"} do
        local _, code, message = open(source)
        print(code, message:match "[^\n]*", case.held(ctx))
      end]]
    local once = "ESCRIPT\tpolicy 'wild': stopped: it took more time than its budget\t0\n"
    assert.are.equal(once .. once, output)
  end)

  it("is compiled, and the only one of its process until it closes #fork", function()
    local output = run [[
      local first = assert(open(case.scorer "for i = 0, c.n - 1 do c.keep[i] = -i end"))
      print(case.describe(first):match "^%a+", case.victims(ctx, first, {n = 5}, 1)[1])
      print(select(2, open(case.scorer "")))
      print(case.victims(ctx, first, {n = 5}, 1)[1])
      assert(case.load(ctx, case.scorer ""))
      lib.tide_policy_close(first)
      print(open(case.scorer "") ~= nil)]]
    local code, message = output:match "\n(EUNSUPPORTED)\t(policy 'wild': [^\n]*)\n"
    assert.are.equal("EUNSUPPORTED", code)
    assert.is_truthy(message:find("one guarded policy a process", 1, true))
    assert.matches("^compiled\t4\n.*\n4\ntrue\n$", output)
  end)

  it("must be asked for by a level that exists", function()
    local case, lib = require "spec.policy_case", require("tide.cdef").lib
    local ctx = case.context()
    local policy, code, message = case.open(ctx, {source = case.scorer "", level = 2})
    assert.is_nil(policy)
    assert.are.equal("ERANGE", code)
    assert.are.equal("policy: level out of range (got 2, want 0 trusted or 1 guarded)", message)
    for _, settings in ipairs {{}, {source = "x", path = "y"}} do
      policy, code = case.open(ctx, settings)
      assert.is_nil(policy)
      assert.are.equal("EINVAL", code)
    end
    lib.tide_ctx_close(ctx)
  end)
end)
