local ffi = require "ffi"
local helper = require "spec.helper"
local lib = require("tide.cdef").lib
local case = require "spec.policy_case"

local by_score = case.scorer "for i = 0, c.n - 1 do c.keep[i] = c.score[i] end"

describe("a policy", function()
  local ctx
  before_each(function() ctx = case.context() end)
  after_each(function() lib.tide_ctx_close(ctx) end)

  local function load(source) return assert(case.load(ctx, source)) end
  local function victims(policy, columns, n_wanted, now)
    return assert(case.victims(ctx, policy, columns, n_wanted, now))
  end

  describe("that scores", function()
    it("lets the lowest keep leave first", function()
      local slots, report = case.victims(ctx, load(by_score), {n = 5, score = {0.5, 0.1, 0.9, 0.3, 0.2}}, 3)
      assert.are.same({1, 4, 3}, slots)
      assert.are.equal(3, report.n_victims)
      assert.are.equal(0, report.used_fallback)
      assert.are.equal(0, report.n_strikes)
    end)

    it("answers slots, not indices", function()
      local columns = {n = 3, slot = {10, 20, 40}, score = {3, 1, 2}}
      assert.are.same({20, 40, 10}, (victims(load(by_score), columns, 3)))
    end)

    it("breaks ties by older last use, then by lower slot", function()
      local columns = {n = 6, score = {1, 1, 1, 1, 0, 1}, last_use = {5, 3, 3, 9, 9, 5}}
      assert.are.same({4, 1, 2, 0, 5, 3}, (victims(load(by_score), columns, 6)))
    end)

    it("takes -0 for +0 and orders infinities", function()
      local policy = load(case.scorer [[
        local v = {[0] = -0.0, 0, math.huge, -math.huge}
        for i = 0, c.n - 1 do c.keep[i] = v[i] end]])
      assert.are.same({3, 0, 1, 2}, (victims(policy, {n = 4}, 4)))
    end)

    it("starts with keep at zero, each time", function()
      local policy = load(case.scorer "if now == 1 then for i = 0, c.n - 1 do c.keep[i] = -i end end")
      assert.are.same({2, 1, 0}, (victims(policy, {n = 3}, 3, 1)))
      assert.are.same({0, 1, 2}, (victims(policy, {n = 3}, 3, 2)))
    end)

    it("agrees with a full sort, for any number of victims", function()
      math.randomseed(3)
      local policy, n = load(by_score), 200
      for _, n_wanted in ipairs {1, 2, 3, 7, 64, 199, 200} do
        local columns = {n = n, score = {}, last_use = {}}
        local order = {}
        for i = 1, n do
          columns.score[i], columns.last_use[i] = math.random(0, 9), math.random(0, 9)
          order[i] = i - 1
        end
        table.sort(order, function(a, b)
          local sa, sb = columns.score[a + 1], columns.score[b + 1]
          local la, lb = columns.last_use[a + 1], columns.last_use[b + 1]
          if sa ~= sb then return sa < sb end
          if la ~= lb then return la < lb end
          return a < b
        end)
        assert.are.same({unpack(order, 1, n_wanted)}, (victims(policy, columns, n_wanted)))
      end
    end)

    it("sees the columns, and defaults for those that the caller lacks", function()
      local policy = load(case.scorer [[
        local i = 1
        assert(c.n == 2 and c.slot[i] == 9 and c.key[i] == 9ULL and c.index[i] == 9)
        assert(c.born[i] == 0 and c.last_use[i] == 0 and c.score[i] == -math.huge and now == 4.5)
        assert(c.keep[i] == 0)]])
      local _, report = victims(policy, {n = 2, slot = {3, 9}}, 1, 4.5)
      assert.are.equal("", case.fault(policy))
      assert.are.equal(0, report.used_fallback)
      policy = load(case.scorer [[
        assert(c.key[0] == 18446744073709551615ULL and c.index[0] == 5)
        assert(c.born[0] == 7 and c.last_use[0] == 7 and c.score[0] == 0.5)]])
      victims(policy, {n = 1, key = {-1ULL}, index = {5}, born = {7}, score = {0.5}}, 1)
      assert.are.equal("", case.fault(policy))
    end)

    it("shows what keep was", function()
      local policy, n = load(by_score), ffi.new "int32_t[1]"
      assert.is_true(lib.tide_policy_keep(policy, n) == nil)
      victims(policy, {n = 3, score = {0.5, 0.25, 0.75}}, 1)
      local keep = lib.tide_policy_keep(policy, n)
      assert.are.equal(3, n[0])
      assert.are.same({0.5, 0.25, 0.75}, {keep[0], keep[1], keep[2]})
    end)

    it("is compiled before its first decision, and says where a loop is not", function()
      assert.matches("^compiled, %d+ trace", case.describe(load(by_score)))
      local closures = case.scorer [[
        for i = 0, c.n - 1 do
          local f = function() return c.score[i] end
          c.keep[i] = f()
        end]]
      assert.matches("interpreted: the compiler gave up at mine:%d+", case.describe(load(closures)))
      assert.matches("^interpreted: no loop", case.describe(load(case.scorer "")))
    end)

    it("learns nothing from the practice at load", function()
      local policy = load [[
        local n_calls = 0
        return tide.policy.scorer{score = function(c)
          n_calls = n_calls + 1
          for i = 0, c.n - 1 do c.keep[i] = n_calls end
        end}]]
      victims(policy, {n = 1}, 1)
      assert.are.equal(1, lib.tide_policy_keep(policy, nil)[0])
    end)

    it("decides over 65,536 candidates, and over more than it practised on", function()
      local n = 65536
      local scores = ffi.new("float[?]", n)
      for i = 0, n - 1 do scores[i] = (i * 40503) % n end
      local candidates = ffi.new("tide_candidates", {n = n, score = scores})
      local out, report = ffi.new "int32_t[512]", ffi.new "tide_decision"
      local policy = load(by_score)
      for now = 1, 3 do
        assert.are.equal(0, lib.tide_policy_victims(policy, candidates, now, 512, out, report))
      end
      for j = 0, 511 do assert.are.equal(j, scores[out[j]]) end
      assert.are.equal(0, report.used_fallback)
      assert.is_true(report.policy_us > 0)
    end)
  end)

  describe("that proposes", function()
    local function proposer(body)
      return ("return {victims = function(c, now, set, tier, tenant, n)\n%s\nend}"):format(body)
    end

    it("is taken at its word where it names candidates", function()
      local policy = load(proposer "for j = 0, n - 1 do c.out[j] = c.slot[c.n - 1 - j] end return n")
      local slots, report = victims(policy, {n = 4, slot = {2, 4, 6, 8}}, 3)
      assert.are.same({8, 6, 4}, slots)
      assert.are.equal(0, report.used_fallback)
      assert.are.equal("", case.fault(policy))
      assert.is_true(lib.tide_policy_keep(policy, nil) == nil)
    end)

    it("has strangers and doubles counted and the rest filled from the fallback", function()
      local policy = load(proposer "c.out[0] = 6 c.out[1] = 7 c.out[2] = 6 return 3")
      local slots, report = victims(policy, {n = 4, slot = {2, 4, 6, 8}, last_use = {9, 1, 0, 5}}, 3)
      assert.are.same({6, 4, 8}, slots)
      assert.are.equal(2, report.n_rejected)
      assert.are.equal(1, report.used_fallback)
      assert.are.equal(0, report.n_strikes)
      assert.matches("proposed 3 victims, of which 1 were taken", case.fault(policy))
    end)

    it("may come up short, or claim more than it was asked for", function()
      local short = load(proposer "return 0")
      local slots, report = victims(short, {n = 3}, 2)
      assert.are.same({2, 1}, slots)
      assert.are.equal(0, report.n_rejected)
      local boast = load(proposer "c.out[0] = 1 return 1e9")
      slots, report = victims(boast, {n = 3}, 1)
      assert.are.same({1}, slots)
      assert.are.equal(999999999, report.n_rejected)
    end)

    it("must say how many", function()
      for _, answer in ipairs {"nil", "-1", "0/0", "'two'", "1/0"} do
        local policy = load(proposer("return " .. answer))
        local _, report = victims(policy, {n = 2}, 1)
        assert.are.equal(1, report.n_strikes)
        assert.matches("victims: want how many slots stand in c.out", case.fault(policy), 1, true)
      end
    end)

    it("cannot write what is no slot", function()
      for _, value in ipairs {"1.5", "-1", "1e10", "0/0", "2^31"} do
        local policy = load(proposer(("c.out[0] = %s return 1"):format(value)))
        local _, report = victims(policy, {n = 2}, 1)
        assert.are.equal(1, report.n_rejected)
      end
    end)
  end)

  describe("from the repository", function()
    local columns = {n = 8, index = {0, 1, 2, 3, 0, 1, 2, 3}, last_use = {4, 4, 4, 4, 2, 2, 2, 9},
      born = {0, 0, 0, 0, 2, 2, 2, 9}, score = {0, 0.2, 0.1, 0.9, 0.3, 0.01, 0.02, 0.5}}

    it("lru is tail-first LRU, as the fallback is", function()
      local lru = assert(case.load_file(ctx, "lua/tide/policy/lru.lua"))
      local failing = load(case.scorer "error 'never'")
      local slots, report = victims(lru, columns, 8)
      assert.are.same({6, 5, 4, 3, 2, 1, 0, 7}, slots)
      assert.are.equal(0, report.used_fallback)
      for n_wanted = 1, 8 do
        assert.are.same((victims(failing, columns, n_wanted)), (victims(lru, columns, n_wanted)))
      end
      assert.are.equal("lru", ffi.string(lib.tide_policy_name(lru)))
    end)

    it("lowrank fades scores and keeps sinks", function()
      local lowrank = assert(case.load_file(ctx, "lua/tide/policy/lowrank.lua"))
      -- keep at tick 10: inf, 0.08, -0.02, 0.78, inf, -0.15, -0.14, 0.48
      assert.are.same({5, 6, 2, 1, 7, 3, 4, 0}, (victims(lowrank, columns, 8, 10)))
    end)

    it("keep_mass keeps sinks, the young, and the best of the rest", function()
      local keep_mass = assert(case.load_file(ctx, "lua/tide/policy/keep_mass.lua"))
      assert.are.same({5, 6, 2, 1, 3}, (victims(keep_mass, columns, 5, 10)))
      local lines = select(2, helper.read("lua/tide/policy/keep_mass.lua"):gsub("\n", ""))
      assert.is_true(lines <= 30)
    end)
  end)

  describe("with a fault", function()
    local columns = {n = 4, last_use = {3, 1, 2, 0}}

    it("leaves the decision to tail-first LRU and keeps the reason with its traceback", function()
      local policy = load(case.scorer "local x = c.score.y.z")
      local slots, report = victims(policy, columns, 2)
      assert.are.same({3, 1}, slots)
      assert.are.equal(1, report.used_fallback)
      assert.are.equal(1, report.n_strikes)
      assert.matches("^mine:2: .*stack traceback:.*mine:2: in function 'score'", case.fault(policy))
      assert.is_true(lib.tide_policy_keep(policy, nil) == nil)
    end)

    -- A NaN sorts as it likes: with it table.sort misorders without an error, and one engine dropped every
    -- block whose score was NaN and then repeated the last one 389 times.
    it("of a NaN, names the index and what it was made from", function()
      local policy = load(case.scorer "c.keep[2] = c.score[2] * 0")
      local slots = victims(policy, columns, 4, 6)
      assert.are.same({3, 1, 2, 0}, slots)
      assert.are.equal("keep[2] is not a number "
        .. "(slot 2, key 2, index 2, born 0, last_use 2, score -inf, now 6)", case.fault(policy))
    end)

    it("is switched off after three in a row, and the reason stays", function()
      local policy = load(case.scorer "if now > 0 then error('at ' .. now) end")
      for now, expected in ipairs {1, 2} do
        local _, report = victims(policy, columns, 1, now)
        assert.are.equal(expected, report.n_strikes)
      end
      local _, report = victims(policy, columns, 1, 0)
      assert.are.same({2, 0}, {report.n_strikes, report.used_fallback})
      for now = 3, 5 do victims(policy, columns, 1, now) end
      assert.matches("^switched off after 3 faults in a row, the last: mine:2: at 5", case.fault(policy))
      local slots
      slots, report = victims(policy, columns, 1, 0)
      assert.are.same({3}, slots)
      assert.are.same({5, 1}, {report.n_strikes, report.used_fallback})
      assert.are.equal(0, report.policy_us)
    end)

    it("of time, decides all the same", function()
      local policy = load(case.scorer "for i = 0, c.n - 1 do c.keep[i] = c.last_use[i] == 0 and 1 or 0 end")
      lib.tide_policy_budget(policy, 1e-3)
      for n_strikes = 1, 3 do
        local slots, report = victims(policy, columns, 1)
        assert.are.same({1}, slots)
        assert.are.same({0, n_strikes}, {report.used_fallback, report.n_strikes})
      end
      assert.matches("late: the decision took .* ms %(budget is 0.00 ms%)", case.fault(policy))
      local _, report = victims(policy, columns, 1)
      assert.are.equal(1, report.used_fallback)
      assert.are.equal(lib.TIDE_ERANGE, lib.tide_policy_budget(policy, -1))
    end)
  end)

  describe("asked wrongly", function()
    it("says what it wants of n_wanted, and writes nothing", function()
      local policy = load(by_score)
      for _, n_wanted in ipairs {-1, 4, 2147483647} do
        local out = ffi.new("int32_t[4]", -5, -5, -5, -5)
        local candidates = ffi.new("tide_candidates", {n = 3})
        assert.are.equal(lib.TIDE_ERANGE, lib.tide_policy_victims(policy, candidates, 0, n_wanted, out, nil))
        assert.are.equal(("policy 'mine': n_wanted out of range (got %d, want 0..3, the candidates)")
          :format(n_wanted), case.message(ctx))
        assert.are.same({-5, -5}, {out[0], out[3]})
      end
    end)

    it("answers nothing to nothing, without the script", function()
      local policy = load(case.scorer "error 'never'")
      for _, n in ipairs {0, 3} do
        local slots, report = victims(policy, {n = n}, 0)
        assert.are.same({}, slots)
        assert.are.same({0, 0, 0}, {report.n_victims, report.n_strikes, report.used_fallback})
      end
    end)

    it("refuses candidates out of order, ticks that are no numbers, and NULL", function()
      local policy = load(by_score)
      local _, code, message = case.victims(ctx, policy, {n = 3, slot = {1, 3, 3}}, 1)
      assert.are.same({"EINVAL", "candidates: slots must ascend (got 3 after 3 at index 2)"}, {code, message})
      _, code, message = case.victims(ctx, policy, {n = 2, last_use = {0, 0 / 0}}, 1)
      assert.are.same({"EINVAL", "candidates: last_use is not a number at index 1"}, {code, message})
      _, code = case.victims(ctx, policy, {n = 2}, 1, 0 / 0)
      assert.are.equal("EINVAL", code)
      _, code = case.victims(ctx, policy, {n = -1}, 0)
      assert.are.equal("EINVAL", code)
      assert.are.equal(lib.TIDE_EINVAL, lib.tide_policy_victims(policy, nil, 0, 0, nil, nil))
      assert.are.equal(lib.TIDE_EINVAL, lib.tide_policy_victims(nil, nil, 0, 0, nil, nil))
      local candidates = ffi.new("tide_candidates", {n = 2})
      assert.are.equal(lib.TIDE_EINVAL, lib.tide_policy_victims(policy, candidates, 0, 1, nil, nil))
    end)
  end)

  describe("with settings", function()
    local faded = case.scorer("for i = 0, c.n - 1 do c.keep[i] = set.fade end",
      "{fade = {0.25, 'points a tick'}, sink = {1, 'blocks'}}")
    local value = ffi.new "double[1]"

    it("starts from the defaults and follows what the host sets", function()
      local policy = load(faded)
      assert.are.same({0, 0.25}, {lib.tide_policy_get(policy, "fade", value), value[0]})
      victims(policy, {n = 1}, 1)
      assert.are.equal(0.25, lib.tide_policy_keep(policy, nil)[0])
      assert.are.equal(0, lib.tide_policy_set(policy, "fade", 3))
      assert.are.same({0, 3}, {lib.tide_policy_get(policy, "fade", value), value[0]})
      victims(policy, {n = 1}, 1)
      assert.are.equal(3, lib.tide_policy_keep(policy, nil)[0])
    end)

    it("suggests the nearest name for an unknown one, or lists what there is", function()
      local policy = load(faded)
      assert.are.equal(lib.TIDE_EINVAL, lib.tide_policy_set(policy, "fad", 1))
      assert.are.equal("policy 'mine': no setting 'fad' (did you mean 'fade'?)", case.message(ctx))
      assert.are.equal(lib.TIDE_EINVAL, lib.tide_policy_get(policy, "temperature", value))
      assert.are.equal("policy 'mine': no setting 'temperature' (want fade, sink)", case.message(ctx))
      assert.are.equal(lib.TIDE_EINVAL, lib.tide_policy_get(load(by_score), "x", value))
      assert.are.equal("policy 'mine': no setting 'x' (there are none)", case.message(ctx))
    end)

    it("refuses a NaN, and a script that sets or misspells", function()
      local policy = load(faded)
      assert.are.equal(lib.TIDE_EINVAL, lib.tide_policy_set(policy, "fade", 0 / 0))
      for body, message in pairs {["set.fade = 1"] = "settings are set by the host",
        ["local x = set.fads"] = "no setting 'fads' (did you mean 'fade'?)"} do
        policy = load(case.scorer(body, "{fade = {1, 'points'}}"))
        victims(policy, {n = 1}, 1)
        assert.is_truthy(case.fault(policy):find(message, 1, true), case.fault(policy))
      end
    end)
  end)

  describe("that does not load", function()
    local untouched = ffi.cast("tide_policy *", 8)

    local function refused(source, code, message)
      local out = ffi.new("tide_policy *[1]", untouched)
      local status = lib.tide_policy_load(ctx, "mine", source, #source, out)
      assert.are.equal(code, ffi.string(lib.tide_status_name(status)), source)
      assert.is_truthy(case.message(ctx):find(message, 1, true), case.message(ctx))
      assert.is_true(out[0] == untouched)
      assert.are.equal(0, case.held(ctx))
    end

    it("names the line of a syntax error", function()
      refused("local x = 1\nreturn tide.policy.scorer{ score = function(c) if end }", "EFORMAT",
        "policy 'mine': mine:2: unexpected symbol near 'end'")
    end)

    it("names the line where it failed", function()
      refused("\n\nlocal x = nil + 1", "ESCRIPT", "mine:3: attempt to perform arithmetic on a nil")
    end)

    it("says what a script must return", function()
      refused("local x = 1", "EFORMAT", "the script must end in: return tide.policy.scorer{...} (got nil)")
      refused("return 'lru'", "EFORMAT", "(got string)")
      refused("return {}", "EFORMAT", "want a function score or victims (got neither)")
      refused("return {score = print == nil}", "ESCRIPT", "no global 'print' in a policy")
      refused("return {score = 1}", "EFORMAT", "score: want a function (got number)")
      refused("local f = function() end return {score = f, victims = f}", "EFORMAT", "(got both)")
      refused("return tide.policy.scorer{scores = function() end}", "EFORMAT",
        "unknown field 'scores' (did you mean 'score'?)")
      refused("return tide.policy.scorer(1)", "ESCRIPT", "tide.policy.scorer: want a table (got number)")
      refused("return {name = 1, score = function() end}", "EFORMAT", "name: want a string (got number)")
      refused("return {settings = {fade = 1}, score = function() end}", "EFORMAT",
        'settings.fade: want {default, "what it does"}')
      refused("return {settings = {{1, 'x'}}, score = function() end}", "EFORMAT", "want names as keys")
    end)

    it("is empty, or no file", function()
      refused("", "EFORMAT", "policy 'mine': empty")
      local function file(path, code, message)
        local policy, got, text = case.load_file(ctx, path)
        assert.is_nil(policy)
        assert.are.equal(code, got)
        assert.is_truthy(text:find(message, 1, true), text)
      end
      local empty = os.tmpname()
      file("no/such.lua", "EFILE", "policy: cannot read 'no/such.lua': No such file or directory")
      file("spec", "EFILE", "policy: cannot read 'spec': Is a directory")
      file(empty, "EFORMAT", "is empty (want a script that returns tide.policy.scorer{...})")
      os.remove(empty)
      file("/dev/zero", "EFORMAT", "is no script of reasonable size")
    end)

    -- Of a text there was no limit: 200 MB took 590 MB outside of the script's own 16, and 1 MB of gotos kept
    -- the compiler busy for 9 s before any watchdog was on.
    it("compiles no text that would keep the compiler busy", function()
      refused("--" .. ("x"):rep(2 ^ 17), "EFORMAT",
        "policy 'mine': no script of reasonable size (got 131074 bytes, want 131072 at most)")
      local labels = "do " .. ("goto a "):rep(8000) .. " end " .. ("do end "):rep(10000) .. "::a::\n"
      local started = os.clock()
      assert.is_nil((case.load(ctx, labels .. ("x"):rep(2 ^ 17 - #labels))))
      assert.is_true(os.clock() - started < 2)
    end)

    it("finds no room in the ledger, and says so before anything is made", function()
      local small = case.context {host_limit_bytes = 1024 * 1024}
      local policy, code, message = case.load(small, by_score)
      assert.is_nil(policy)
      assert.are.equal("EMEM", code)
      assert.matches("^policy 'mine': cpu needs 16.00 MiB, 1.00 MiB free; lower policies", message)
      assert.are.equal(0, case.held(small))
      lib.tide_ctx_close(small)
    end)
  end)

  describe("and its end", function()
    it("gives every byte back", function()
      assert.are.equal(0, case.held(ctx))
      local policy = load(by_score)
      assert.is_true(case.held(ctx) > 16 * 1024 * 1024)
      victims(policy, {n = 10000}, 1)
      lib.tide_policy_close(policy)
      lib.tide_policy_close(nil)
      assert.are.equal(0, case.held(ctx))
    end)

    it("may come after its context, in any order among many", function()
      for round = 1, 6 do
        local own = case.context()
        local policies = {}
        for i = 1, 3 do policies[i] = assert(case.load(own, by_score)) end
        if round % 2 == 0 then lib.tide_policy_close(table.remove(policies, round / 2)) end
        lib.tide_ctx_close(own)
        for _, policy in ipairs(policies) do
          local candidates, out = ffi.new("tide_candidates", {n = 1}), ffi.new "int32_t[1]"
          assert.are.equal(lib.TIDE_ESTATE, lib.tide_policy_victims(policy, candidates, 0, 1, out, nil))
          assert.are.equal(lib.TIDE_ESTATE, lib.tide_policy_set(policy, "x", 1))
          assert.are.equal("mine", ffi.string(lib.tide_policy_name(policy)))
          assert.are.equal("", case.fault(policy))
          lib.tide_policy_close(policy)
        end
      end
    end)
  end)
end)
