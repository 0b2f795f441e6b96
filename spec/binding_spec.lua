-- What scripts call, on the capture of the harbour log: predictors, attention, calibrations, kernels,
-- policies. What the
-- numbers mean is for the specs of the C side; here it is names, shapes, refusals and who is told what.

local tide = require "tide"

local function refused(part, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok, part)
  assert.is_truthy(message:find(part, 1, true), message)
end

local function declined(code, part, result, message, got)
  assert.is_nil(result)
  assert.are.equal(code, got, message)
  assert.is_truthy(message:find(part, 1, true), message)
end

describe("from Lua", function()
  local ctx, c
  local geometry = {blocks = 145, q_heads = 9, kv_heads = 3, head_dim = 64}
  local function with(more)
    local given = {}
    for key, value in pairs(geometry) do given[key] = value end
    for key, value in pairs(more or {}) do given[key] = value end
    return given
  end

  setup(function()
    ctx = assert(tide.open{device = "cpu"})
    c = assert(tide.load "spec/data/harbour.safetensors")
  end)
  teardown(function() ctx:close() end)

  describe("a predictor", function()
    it("scores every block of the pool, a range, a list, or none", function()
      local p = assert(tide.predictor(geometry)):write(c.k)
      local all = p:score(c.q[511])
      assert.are.same({145}, all.shape)
      assert.are.same({512, 145}, p:score(c.q).shape)
      assert.are.same({12}, p:score(c.q[511], {n = 12}).shape)
      assert.are.same({140}, p:score(c.q[511], {first = 5}).shape)
      assert.are.same({0}, p:score(c.q[511], {n = 0}).shape)
      assert.are.same({3}, p:score(c.q[511], {blocks = tide.from({7, 3, 9}, "i32")}).shape)
      local sum = 0
      for _, share in ipairs(all:read():totable()) do sum = sum + share end
      assert.is_true(math.abs(sum - 1) < 1e-4)
      p:close()
    end)

    it("writes scores where it is told", function()
      local p = assert(tide.predictor(geometry)):write(c.k)
      local out = tide.zeros{shape = {145}}
      assert.are.equal(out, p:score(c.q[511], {out = out}))
      assert.are.same(p:score(c.q[511]):read():totable(), out:read():totable())
      refused("wrong shape (got f32[144]", p.score, p, c.q[511], {out = tide.zeros{shape = {144}}})
      p:close()
    end)

    it("forgets, and says of a block that it holds nothing", function()
      local p = assert(tide.predictor(geometry))
      assert.is_nil((p:slot(0, 3)))
      p:append(c.k)
      assert.are.same({3, 1, 64}, p:slot(0, 3).shape)
      p:forget{blocks = tide.from({3}, "i32")}
      assert.is_nil((p:slot(0, 3)))
      assert.are.equal(-math.huge, p:score(c.q[511])[3])
      assert.are.equal(8, p:sizes().bytes_per_token)
      p:close()
    end)

    it("refuses what it does not know, with the nearest name", function()
      local p = assert(tide.predictor(geometry))
      refused('unknown setting "head_dims"; did you mean "head_dim"?', tide.predictor, with{head_dims = 3})
      refused("kv_heads is required", tide.predictor, {blocks = 1, q_heads = 1, head_dim = 1})
      refused("want one of mean tokens minmax", tide.predictor, with{summary = "median"})
      refused('unknown option "laier"; did you mean "layer"?', p.score, p, c.q[0], {laier = 1})
      refused("blocks exclude first and n", p.score, p, c.q[0], {n = 1, blocks = tide.from({1}, "i32")})
      refused("wants a buffer (got 3)", p.write, p, 3)
      refused("head_dim", p.score, p, tide.zeros{shape = {9, 32}})
      refused("projection has the wrong value", tide.predictor, with{projection = "pca"})
      refused("projection has the wrong value", tide.predictor, with{projection = {rank = 3}})
      refused("random is a seed", tide.predictor, with{summary = "tokens", projection = {random = "x"}})
      refused("out of range (got first 140 and n 6, want within 145", p.score, p, c.q[0], {first = 140,
        n = 6})
      p:close()
    end)

    it("that does not fit is declined before anything is allocated", function()
      local small = assert(require("tide.context").open{device = "cpu", device_limit = "64 KiB"})
      declined("EMEM", "n_blocks", small:predictor(geometry))
      small:close()
    end)
  end)

  describe("attention", function()
    it("gives what was asked for, the output when nothing was", function()
      local row = tide.attend{q = c.q[511], k = c.k, v = c.v, first_position = 2325}
      assert.are.same({1, 9, 64}, row.out.shape)
      assert.is_nil(row.mass)
      local both = tide.attend{q = c.q:slice(0, 448, 64), k = c.k, v = c.v, first_position = 2262,
        mass = true}
      assert.are.same({64, 146}, both.mass.shape)
      assert.are.same({64, 9}, both.lse.shape)
      assert.is_nil(both.out)
      local sum = 0
      for _, share in ipairs(both.mass[63]:read():totable()) do sum = sum + share end
      assert.is_true(math.abs(sum - 1) < 1e-4)
    end)

    it("over a list of all blocks is attention", function()
      local all = {}
      for i = 0, 145 do all[i + 1] = i end
      local given = {q = c.q[511], k = c.k, v = c.v, first_position = 2325}
      local dense = tide.attend(given).out:read():totable()
      given.blocks = tide.from(all, "i32")
      assert.are.same(dense, tide.attend(given).out:read():totable())
    end)

    it("gathers rows by id, zeros for an id that is none", function()
      local rows = tide.gather(tide.from{{1, 2}, {3, 4}}, {1, 9, 0})
      assert.are.same({{3, 4}, {0, 0}, {1, 2}}, rows:read():totable())
    end)
  end)

  describe("a calibration", function()
    local path = os.tmpname()
    local made
    setup(function()
      local half = {k = c.k:slice(0, 0, 1163), q = c.q:slice(0, 0, 448), meta = {layer = "23", model = "m"}}
      made = assert(tide.calibrate(half, {rank = 8, centred = true, query_aware = true, file = path}))
    end)
    teardown(function() os.remove(path) end)

    it("says of itself what a predictor must know", function()
      local file = assert(tide.load(path))
      assert.are.same({"8", "64", "3", "23", "true", "true", "m"}, {file.meta.rank, file.meta.head_dim,
        file.meta.kv_heads, file.meta.layer, file.meta.centred, file.meta.query_aware, file.meta.model})
      assert.are.same({3, 64, 8}, file.k_map.shape)
      assert.are.same(made.k_map:read():totable(), file.k_map:read():totable())
    end)

    it("serves a predictor from its file as from memory", function()
      local scores = {}
      for i, how in ipairs{path, made} do
        local p = assert(tide.predictor(with{summary = "tokens", projection = {calibrated = how,
          layer = 23}}))
        scores[i] = p:write(c.k):score(c.q[511]):read():totable()
        p:close()
      end
      assert.are.same(scores[1], scores[2])
    end)

    -- A calibration for another layer or model would rank blocks by noise, without a word.
    it("that does not fit is declined with both values", function()
      local function predictor(projection, more)
        projection.calibrated = projection.calibrated or path
        more = with(more)
        more.summary, more.projection = "tokens", projection
        return tide.predictor(more)
      end
      declined("EFORMAT", "has head_dim 64, this predictor wants 32", predictor({}, {head_dim = 32}))
      declined("EFORMAT", "has kv_heads 3, this predictor wants 9", predictor({}, {kv_heads = 9}))
      declined("EFORMAT", "has rank 8, this predictor wants 16", predictor{rank = 16})
      declined("EFORMAT", "is of layer 23, this predictor wants 22", predictor{layer = 22})
      declined("EFORMAT", "1 calibrations for 2 layers", predictor({}, {layers = 2}))
      declined("EFORMAT", "is of layer 23, this predictor wants 24", predictor({calibrated = {path, path}},
        {layers = 2}))
      declined("EFORMAT", "not a calibration", predictor{calibrated = "spec/data/harbour.safetensors"})
      declined("EFILE", "no such file", predictor{calibrated = "/nonexistent"})
    end)

    it("needs a capture", function()
      refused("wants at least one capture", tide.calibrate, {rank = 8})
      refused("k of source 1: wants a buffer", tide.calibrate, {k = 3})
      declined("EFILE", "no such file", tide.calibrate("/nonexistent", {rank = 8}))
    end)
  end)

  describe("a kernel", function()
    it("is listed with its variants, the definition first", function()
      local names = {}
      for _, kernel in ipairs(tide.kernel.list()) do
        names[kernel.name] = true
        assert.are.equal("ref", kernel.variants[1])
      end
      assert.is_true(names.gather and names.score_blocks and names.attend)
    end)

    it("explains which variant serves a geometry", function()
      local text = tide.kernel.explain("score_blocks", {n_q_heads = 9, n_kv_heads = 3, rank = 32,
        n_entries = 16})
      assert.is_truthy(text:find("serves on cpu", 1, true), text)
      text = tide.kernel.explain("score_blocks", {n_q_heads = 9, n_kv_heads = 2, rank = 32, n_entries = 16})
      assert.is_truthy(text:find("multiple of n_kv_heads (got 9 and 2)", 1, true), text)
    end)

    it("runs on buffers", function()
      local src, dst = tide.from{{1, 2}, {3, 4}}, tide.zeros{shape = {2, 2}}
      assert.is_true(tide.kernel.run("gather", {src = src, dst = dst, ids = tide.from({1, 0}, "i32"), n = 2,
        n_src = 2,
        row_bytes = 8, src_stride = 8, dst_stride = 8}, {variant = "ref"}))
      assert.are.same({{3, 4}, {1, 2}}, dst:read():totable())
      refused('gather has no argument "dts"; did you mean "dst"?', tide.kernel.run, "gather", {dts = dst})
      refused('no such kernel "gater"; did you mean "gather"?', tide.kernel.run, "gater", {})
    end)
  end)

  describe("a policy", function()
    local source = [[
      return tide.policy.scorer{name = "oldest", settings = {bias = {0, "added to every score"}},
        score = function(c, now, set)
          for i = 0, c.n - 1 do c.keep[i] = c.last_use[i] + set.bias end
        end}]]

    it("names victims, shows what it wrote, and takes settings", function()
      local p = assert(tide.policy{source = source, name = "mine"})
      local victims, report = p:victims({last_use = {5, 3, 9, 1}}, 10, 2)
      assert.are.same({3, 1}, victims)
      assert.is_false(report.used_fallback)
      assert.are.same({5, 3, 9, 1}, p:keep())
      assert.is_nil(p:fault())
      assert.are.equal(2, p:set("bias", 2):get "bias")
      assert.are.same({3}, (p:victims({last_use = tide.from{5, 3, 9, 1}}, 10, 1)))
      assert.are.same({7, 5, 11, 3}, p:keep())
      p:close()
      refused("the policy is closed", p.keep, p)
    end)

    it("is declined when it is none, and misuse is told where", function()
      declined("EFORMAT", "mine", tide.policy{source = "return 3", name = "mine"})
      declined("EFILE", "nonexistent", tide.policy "/nonexistent")
      refused("wants a path or a source", tide.policy, {})
      local p = assert(tide.policy{source = source})
      refused('no column "last_used"; did you mean "last_use"?', p.victims, p, {last_used = {1}}, 1, 1)
      refused("columns differ in length", p.victims, p, {last_use = {1}, born = {1, 2}}, 1, 1)
      refused("a tick is never NaN", p.victims, p, {last_use = {0 / 0}}, 1, 1)
      refused("wants an integer", p.victims, p, {slot = {0.5}}, 1, 1)
      p:close()
    end)
  end)
end)
