local helper = require "spec.helper"
local lib = require("tide.cdef").lib
local case = require "spec.policy_case"

describe("the sandbox of a policy", function()
  local ctx
  before_each(function() ctx = case.context() end)
  after_each(function() lib.tide_ctx_close(ctx) end)

  -- Runs body inside a decision over three candidates; answers the fault, "" when there was none.
  local function fault_of(body)
    local policy = assert(case.load(ctx, case.scorer(body)))
    local slots = assert(case.victims(ctx, policy, {n = 3, last_use = {2, 0, 1}}, 3))
    assert.are.equal(3, #slots)
    local fault = case.fault(policy)
    lib.tide_policy_close(policy)
    return fault
  end

  local function refused(body, message)
    local fault = fault_of(body)
    assert.is_truthy(fault:find(message, 1, true), body .. " --> " .. (fault == "" and "no fault" or fault))
  end

  local function allowed(body) assert.are.equal("", fault_of(body)) end

  it("offers what a policy needs and nothing else", function()
    allowed [[
      local x = bit.band(6, 3) + math.max(1, 2) + #table.concat({"a"}) + select("#", 1) + tonumber("1")
      assert(x == 7 and type(tostring(x)) == "string" and next({}) == nil and unpack({1}) == 1)
      assert(("%5.1f"):format(2) == "  2.0" and ("ab"):upper() == "AB" and pcall(error) == false)
      for _ in pairs {} do end
      for _ in ipairs {} do end]]
    local gone = "ffi jit debug io os package require load loadstring loadfile dofile module "
      .. "getmetatable setmetatable setfenv getfenv newproxy collectgarbage gcinfo coroutine rawget "
      .. "rawset rawequal xpcall print _G arg"
    for name in gone:gmatch "%S+" do
      refused("local x = " .. name, ("no global '%s' in a policy"):format(name))
    end
  end)

  it("has no globals to write, to another's harm or by mistake", function()
    refused("tide = nil x = 1", "global 'x': put local before it")
    allowed "tide = nil"
    refused("keep = {}", "global 'keep': put local before it")
  end)

  -- In a sandbox made of environments, getmetatable("").__index.upper = ... changed the strings of the host,
  -- and loadstring took bytecode. A policy has a state of its own: there is nothing of the host to change.
  it("does not reach the host through the metatable of strings", function()
    allowed [[string.upper = function() return "poison" end assert(("x"):upper() == "poison")]]
    assert.are.equal("X", ("x"):upper())
    refused("local x = ('').upper.__index", "attempt to index")
    allowed [[string.format = nil table.sort = nil table.concat = nil math.floor = nil bit.band = nil]]
  end)

  it("keeps its own tools out of the script's reach", function()
    local poison = [[
      string.format = error string.byte = error string.sub = error table.sort = error table.concat = error
      math.floor = error math.min = error tide.policy.scorer = error]]
    refused(poison .. " local x = c.scores", "c.scores: no such column (did you mean 'score'?)")
    refused(poison .. " local x = set.any", "no setting 'any' (there are none)")
  end)

  it("refuses bytecode, however it is dressed", function()
    local bytecode = string.dump(assert(loadstring(case.scorer "")))
    for _, front in ipairs {"", "\239\187\191", "#!/bin/tide\n"} do
      local policy, code, message = case.load(ctx, front .. bytecode)
      assert.is_nil(policy)
      assert.are.equal("EFORMAT", code)
      assert.is_truthy(message:find("bytecode", 1, true) or message:find("wrong mode", 1, true), message)
    end
  end)

  it("has no library call that never ends", function()
    for _, name in ipairs {"find", "match", "gmatch", "gsub", "rep", "dump"} do
      refused(("local s = '' s:%s('a', 1)"):format(name), ("attempt to call method '%s'"):format(name))
    end
  end)

  describe("around columns", function()
    it("checks every index", function()
      for _, column in ipairs {"slot", "key", "index", "born", "last_use", "score", "keep"} do
        for _, i in ipairs {"-1", "3", "1e10", "-1e300", "0/0", "1/0"} do
          refused(("local x = c.%s[%s]"):format(column, i), ("c.%s["):format(column))
        end
        for _, i in ipairs {"'0'", "nil", "{}", "0ULL", "true", "c", "1i"} do
          refused(("local x = c.%s[%s]"):format(column, i), ("c.%s: want a number as index"):format(column))
        end
      end
      refused("c.keep[3] = 1", "c.keep[3]: out of range (want 0..2)")
      refused("c.keep[-1] = 1", "c.keep[-1]: out of range (want 0..2)")
      refused("c.keep.x = 1", "c.keep: want a number as index (got x)")
      refused("c.out[0] = 1 c.out[3] = 1", "c.out[3]: out of range (want 0..2)")
    end)

    it("checks again when there are fewer candidates than before", function()
      local policy = assert(case.load(ctx, case.scorer "for i = 0, 2 do c.keep[i] = i end"))
      assert(case.victims(ctx, policy, {n = 3}, 1))
      assert.are.equal("", case.fault(policy))
      assert(case.victims(ctx, policy, {n = 2}, 1))
      assert.is_truthy(case.fault(policy):find("c.keep[2]: out of range (want 0..1)", 1, true))
    end)

    it("lets keep alone be written, with numbers", function()
      refused("c.score[0] = 1", "mine:2: c.score is read-only")
      refused("c.keep[0] = nil", "mine:2: c.keep[0]: want a number (got nil)")
      refused("c.keep[0] = '1'", "c.keep[0]: want a number (got string)")
      refused("c.keep[0] = 1ULL", "c.keep[0]: want a number (got cdata)")
      allowed("c.keep[0] = c.n assert(c.keep[0] == 3)")
    end)

    it("cannot be replaced, copied into or taken apart", function()
      refused("c.keep = {}", "c.keep: write its entries")
      refused("c.n = 100", "c.n: write its entries")
      refused("c.mine = 1", "c.mine: write its entries")
      refused("local x = c.ptr", "c.ptr: no such column")
      allowed "assert(next(c) == nil and next(c.keep) == nil and #c == 0)"
      refused("local x = c.keep[3]", "c.keep[3]")
      allowed "assert(type(c.key[0]) == 'cdata' and tostring(c.key[2]) == '2ULL')"
      refused("local x = c.key[0].p", "has no member named 'p'")
      refused("local x = c.key[0][0]", "cannot be indexed")
      refused("c.key[0][0] = 1", "cannot be indexed")
      refused("c.key[0]()", "is not callable")
    end)
  end)

  describe("around memory", function()
    local bomb = "local t = {} while true do t = {t, t} end"

    it("ends a script that takes too much, and the next decision is right again", function()
      local body = ("if now == 1 then %s end c.keep[0] = 1"):format(bomb)
      local policy = assert(case.load(ctx, case.scorer(body)))
      local _, report = case.victims(ctx, policy, {n = 2}, 1, 1)
      assert.are.equal(1, report.used_fallback)
      assert.are.equal("not enough memory: the script may hold 16.00 MiB", case.fault(policy))
      for _ = 1, 5 do
        local slots
        slots, report = case.victims(ctx, policy, {n = 2}, 1, 2)
        assert.are.same({1}, slots)
        assert.are.equal(0, report.used_fallback)
      end
      assert.matches("holds 0%.%d+ of 16.00 MiB", case.describe(policy))
    end)

    it("is not fooled by strings, by pcall, or by a script that starts with it", function()
      refused("local s = 'x' while true do s = s .. s end", "not enough memory")
      refused("local t = {} for i = 1, 1e9 do t[i] = tostring(i) end", "not enough memory")
      allowed(("for _ = 1, 2 do assert(not pcall(function() %s end)) end"):format(bomb))
      local _, code, message = case.load(ctx, bomb)
      assert.are.equal("ESCRIPT", code)
      assert.are.equal("policy 'mine': not enough memory: the script may hold 16.00 MiB", message)
    end)

    it("counts what lives, not garbage that waits for the collector", function()
      allowed "local t for i = 1, 2e6 do t = {i, {}} end c.keep[0] = t[1]"
    end)
  end)

  -- table.insert counts down to its position, in C: 2^31 steps that no watchdog sees. A column is empty for
  -- Lua, and what it wrote there hid the column from then on.
  it("keeps table.insert and table.sort to lists of the script", function()
    refused("table.insert({}, -2147483647, 1)", "position out of range (got -2147483647, want 1..1)")
    refused("table.insert({1}, 0/0, 1)", "table.insert: position out of range (got nan, want 1..2)")
    refused("table.insert(c.keep, 1)", "table.insert: want a table of the script's own (got a column)")
    refused("table.sort(c.keep)", "table.sort: want a table of the script's own (got a column)")
    allowed [[
      local t = {3, 1}
      table.insert(t, 2)
      table.insert(t, 1, 9)
      table.sort(t)
      assert(table.concat(t, " ") == "1 2 3 9")
      table.sort(t, function(a, b) return a > b end)
      assert(table.concat(t, " ") == "9 3 2 1")]]
  end)

  -- An address is another in every process: a policy that sorts by it decides anew each time.
  it("prints no addresses", function()
    allowed [[
      assert(tostring(c) == "table" and tostring(tostring) == "function")
      assert(string.format("%s %5d %%p %s", c.keep, 7, math.max) == "table     7 %p function")
      assert(("%q"):format("a") == '"a"' and tostring(1.5) == "1.5" and tostring(nil) == "nil")]]
    refused("return ('%5p'):format(c)", "format: %p is not for policies")
  end)

  it("ends a recursion, deep or through pcall and sort", function()
    refused("local function f() return 1 + f() end f()", "stack overflow")
    allowed "local function f() return pcall(f) end f()"
    allowed [[
      local function f() table.sort({1, 2, 3}, function(a, b) f() return a < b end) end
      assert(not pcall(f))]]
    refused("local t = {} for i = 1, 1e5 do t[i] = i end local x = {unpack(t)}", "too many results")
  end)

  it("survives any error value", function()
    refused("error()", "error object is a nil value")
    refused("error {}", "error object is a table value")
    refused("error(c)", "error object is a table value")
    refused("error(1)", "1")
    refused("error(nil)", "error object is a nil value")
    refused("error(('x'):upper())", "X")
  end)

  it("has two policies know nothing of each other", function()
    local poison = assert(case.load(ctx, case.scorer "math.huge = 0 tide.policy = nil string.len = nil"))
    assert(case.victims(ctx, poison, {n = 1}, 1))
    local other = assert(case.load(ctx, case.scorer "assert(math.huge > 0 and tide.policy and string.len)"))
    assert(case.victims(ctx, other, {n = 1}, 1))
    assert.are.equal("", case.fault(other))
  end)

  local luajit = ("LUA_PATH='lua/?.lua;lua/?/init.lua;./?.lua' LUA_CPATH=%s/lib/?.so luajit -e '%%s'")
    :format(helper.build)

  -- LuaJIT takes a call through the FFI for a leaf: a C function that comes back into the same state crashes
  -- it, three times out of three, when it comes back only sometimes. A decision enters another state.
  it("is entered from compiled code through the FFI, now and then and with errors #fork", function()
    local output, code = helper.run(luajit:format([[
        local ffi, lib, case = require "ffi", require("tide.cdef").lib, require "spec.policy_case"
        local ctx = case.context()
        local policy = assert(case.load(ctx, case.scorer [=[
          if now % 5 == 0 then local x = nil + 1 end
          c.keep[0] = now]=]))
        local candidates, out = ffi.new("tide_candidates", {n = 4}), ffi.new "int32_t[4]"
        local report = ffi.new "tide_decision"
        local n_fallbacks, n_decisions, sum = 0, 0, 0
        for every = 1, 4099, 97 do
          for i = 1, 40000 do
            sum = sum + i % 7
            if i % every == 0 then
              n_decisions = n_decisions + 1
              assert(lib.tide_policy_victims(policy, candidates, n_decisions, 2, out, report) == 0)
              n_fallbacks = n_fallbacks + report.used_fallback
            end
          end
        end
        lib.tide_policy_close(policy)
        lib.tide_ctx_close(ctx)
        local lost = n_decisions - 5 * n_fallbacks
        print(lost >= 0 and lost < 5 and n_decisions > 40000 and "good" or "bad")]]))
    assert.are.equal("good\n", output)
    assert.are.equal(0, code)
  end)

  -- Where no address near the VM is free, every compilation fails after trying: a loop of 0.2 s took
  -- 271 s, and jit.status() said true all along. A driver may reserve that much.
  it("turns the compiler off where no trace finds room for its code, and says so #fork", function()
    local output = helper.run(luajit:format([[
      local ffi = require "ffi"
      ffi.cdef "void *mmap(void *, size_t, int, int, int, long); int lua_gettop(void *);"
      local near = tonumber(ffi.cast("uintptr_t", ffi.cast("void *", ffi.C.lua_gettop)))
      local none, reserve, reach = 0, 0x4000 + 0x100000 + 0x22, 2^31 + 2^26
      for _, bytes in ipairs {2^26, 2^22, 2^18, 2^16} do
        local first = near - reach
        for at = first - first % bytes, near + reach, bytes do
          ffi.C.mmap(ffi.cast("void *", ffi.cast("uintptr_t", at)), bytes, none, reserve, -1, 0)
        end
      end
      local lib, case = require("tide.cdef").lib, require "spec.policy_case"
      local ctx = case.context()
      local policy = case.load(ctx, case.scorer "for i = 0, c.n - 1 do c.keep[i] = -i end")
      print(case.describe(policy))
      print(case.victims(ctx, policy, {n = 9}, 1)[1], case.fault(policy))]]))
    assert.matches("^interpreted: no trace compiles in this process; holds .-\n8\t\n$", output)
  end)

  -- A library that links LuaJIT ran on the Lua of the engine that loaded it: no jit, no ffi, exit code 0.
  it("refuses a Lua that is no LuaJIT, in one line #fork", function()
    local lua = "/usr/lib/x86_64-linux-gnu/liblua5.1.so.0"
    if helper.run("ls " .. lua) ~= lua .. "\n" then return helper.skip("no " .. lua) end
    local output, code = helper.run(("LD_PRELOAD=%s %s/spec/engine"):format(lua, helper.build))
    assert.matches("^engine: policy: policy 'keep_mass': the Lua of this process cannot run policies: "
      .. "it is Lua 5.1 without a compiler", output)
    assert.are.equal(1, code)
  end)
end)
