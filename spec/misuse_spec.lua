-- What bad arguments did before somebody tried them: crashes from pure Lua, silent nonsense, and errors that
-- pointed into tide instead of at the line that was wrong.

local ffi = require "ffi"
local helper = require "spec.helper"
local tide = require "tide"

describe("misuse", function()
  local ctx
  setup(function() ctx = assert(tide.open{device = "cpu", threads = 2}) end)
  teardown(function() ctx:close() end)

  -- f raises one line that names this file and holds the part.
  local function raises(part, f, ...)
    local ok, message = pcall(f, ...)
    assert.is_false(ok, part)
    assert.is_truthy(tostring(message):find("^[^\n]*misuse_spec%.lua:%d+: [^\n]*$"), message)
    assert.is_truthy(message:find(part, 1, true), message)
  end

  local function list(b) return b:read():flat() end

  describe("of what is no buffer, predictor or policy", function()
    -- A method called with a point instead of a colon indexed nil inside of tide.
    it("is said at the caller's line", function()
      local p = assert(ctx:predictor{blocks = 4, q_heads = 1, kv_heads = 1, head_dim = 4})
      local policy = assert(ctx:policy{source = "return tide.policy.scorer{score = function() end}"})
      local b = ctx:from{1, 2}
      for _, wrong in ipairs {0, "text", {}, ctx} do
        raises("buffer:read: wants a buffer before the colon", function() return b.read(wrong) end)
        raises("buffer:close: wants a buffer before the colon", function() return b.close(wrong) end)
        raises("predictor:forget: wants a predictor before the colon", function() return p.forget(wrong) end)
        raises("policy:keep: wants a policy before the colon", function() return policy.keep(wrong) end)
      end
      raises("predictor:score: n: wants an integer", function()
        p:score(ctx:buf{shape = {1, 4}}, {n = "1"})
      end)
      raises("attend: k: wants a buffer", function()
        local q = ctx:buf{shape = {1, 1, 4}}
        ctx:attend{q = q, k = {}, v = q}
      end)
      raises("policy:victims: key: wants an integer", function()
        policy:victims({key = {b:read().pointer}}, 0, 1)
      end)
      raises("n_wanted out of range", function() policy:victims({score = {1}}, 0, 2^31 - 1) end)
      policy:close()
      p:close()
    end)

    -- tide.wrap(1ULL, ...) read address 1, and from_dlpack(io.stdout) took a FILE for a tensor.
    it("is no address", function()
      for _, wrong in ipairs {1ULL, 5LL, 7, "text", io.stdout, {}} do
        raises("tide.wrap: pointer: wants a pointer", function() ctx:wrap(wrong, "f32", {2}) end)
        raises("tide.from_dlpack: tensor: wants a pointer", function() ctx:from_dlpack(wrong) end)
      end
      local b = ctx:buf{shape = {2}}
      raises("buffer:write: wants a C array", function() b:write(1ULL) end)
      raises("buffer:write: wants a C array", function() b:write(b:read().pointer) end)
      assert.are.same({3, 4}, list(b:write(ffi.new("float[2]", 3, 4))))
    end)

    -- A list that holds itself was followed for ever.
    it("is refused when a list holds itself", function()
      local endless = {}
      endless[1] = endless
      raises("buf: shape has the wrong value", function() ctx:from(endless) end)
    end)

    it("is shown on one line", function()
      raises([[got "two\nlines"]], function() ctx:buf{shape = {1}, dtype = "two\nlines"} end)
    end)

    -- C ends a string at its first zero byte: another file was opened than the one that was named.
    it("is refused for a name with a zero byte", function()
      raises("tide.load: path", function() ctx:load "spec/data/harbour.safetensors\0.txt" end)
      raises("tide.save: path", function() ctx:save("x\0y", {}) end)
      raises("device: wants a string without zero bytes", function() ctx:sync "cpu\0" end)
    end)
  end)

  describe("of lists", function()
    -- b.shape was the table that reads and writes were measured by: growing it led beyond the memory.
    it("of a shape leaves the buffer and its arrays alone", function()
      local b = ctx:from{1, 2, 3}
      b.shape[1] = 1000000
      assert.are.same({3}, b.shape)
      local array = b:read()
      array.shape[1] = 1000000
      assert.are.same({3}, b.shape)
      raises("array: index out of range (got 3, want 0..2)", function() array:totable() end)
      array.n = 1e9
      raises("array: index out of range", function() return array[5e8] end)
      assert.are.same({1, 2, 3}, array:flat())
    end)

    -- a[0] = 7 made a Lua field beside the memory: writing the array back wrote the old values.
    it("of an array's elements sets them, or is refused", function()
      local b = ctx:from{1, 2, 3}
      local array = b:read()
      array[0] = 7
      assert.are.same({7, 2, 3}, list(b:write(array)))
      raises("array: index out of range (got 3, want 0..2)", function() array[3] = 1 end)
      raises("array: wants numbers (got \"x\")", function() array[0] = "x" end)
      raises("array: cannot set \"first\"", function() array.first = 1 end)
    end)
  end)

  describe("of memory", function()
    -- Rows copied over themselves by memcpy: undefined, and a transposition in place lost values.
    it("of a copy onto itself is as if all were read first", function()
      local b = ctx:from{1, 2, 3, 4, 5}
      b:slice(0, 1, 4):copy(b:slice(0, 0, 4))
      assert.are.same({1, 1, 2, 3, 4}, list(b))
      b:slice(0, 0, 4):copy(b:slice(0, 1, 4))
      assert.are.same({1, 2, 3, 4, 4}, list(b))
      assert.are.same({1, 2, 3, 4, 4}, list(b:copy(b)))
      local square = ctx:from{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}
      assert.are.same({1, 4, 7, 2, 5, 8, 3, 6, 9}, list(square:copy(square:permute{1, 0})))
    end)

    -- Kernels run in no order: an output over an input gave weights of queries that were outputs already.
    it("of an output over an input is refused, and the input is whole", function()
      local q, k = ctx:buf{shape = {4, 4, 8}}:fill(1), ctx:buf{shape = {32, 2, 8}}:fill(1)
      raises("attend: out: shares memory with q", function()
        ctx:attend{q = q, k = k, v = k, out = q, mass = true}
      end)
      local both, four_blocks = ctx:buf{shape = {4, 4}}, ctx:buf{shape = {64, 2, 8}}
      raises("attend: lse: shares memory with attend: mass", function()
        ctx:attend{q = q, k = four_blocks, v = four_blocks, lse = both, mass = both}
      end)
      local rows = ctx:from{{1, 2}, {3, 4}, {5, 6}}
      raises("gather: dst: shares memory with src", function() ctx:gather(rows, {2, 0, 1}, rows) end)
      assert.are.same({1, 2, 3, 4, 5, 6}, list(rows))
      local p = assert(ctx:predictor{blocks = 4, q_heads = 1, kv_heads = 1, head_dim = 4})
      local one = ctx:buf{shape = {1, 4}}:fill(2)
      raises("score: scores: shares memory with q", function() p:score(one, {out = one[0]}) end)
      assert.are.same({2, 2, 2, 2}, list(one))
      p:close()
    end)

    -- Strides were products of extents that nobody had multiplied, since a 0 made the size 0 before.
    it("of a shape that overflows is refused beside a 0, too", function()
      raises("shape overflows 2^63 bytes", function() ctx:buf{shape = {0, 2^53, 2^53, 2^53}} end)
      assert.are.same({2, 0, 8}, ctx:gather(ctx:buf{shape = {2, 0, 8}}, {1, 5}).shape)
    end)

    -- The null device holds what no machine could: an error of LuaJIT's about its own array came out.
    it("of more than a host array may have is refused", function()
      local accounts = assert(tide.open{device = "null"})
      tide.use(ctx)
      local big = accounts:buf{shape = {2^31}, dtype = "u8"}
      raises("array: too large for one host array (got 2147483648 bytes", function() big:read() end)
      raises("buffer:bytes: too large for one host array", function() big:bytes() end)
      accounts:close()
    end)

    it("of a device that another context calls by the same number is refused", function()
      local accounts = assert(tide.open{device = "null"})
      local other = assert(tide.open{device = "cpu"})
      tide.use(ctx)
      local p = assert(other:predictor{blocks = 4, q_heads = 1, kv_heads = 1, head_dim = 4})
      local nowhere = accounts:buf{shape = {1, 4}}
      raises("predictor:score: q: lies on null of another context", function() p:score(nowhere) end)
      raises("gather: src: lies on null of another context", function() other:gather(nowhere, {0}) end)
      assert.are.equal(4, p:score(ctx:buf{shape = {1, 4}}:fill(1)).n)
      other:close()
      accounts:close()
    end)
  end)

  describe("of a calibration", function()
    local path
    before_each(function() path = os.tmpname() end)
    after_each(function() os.remove(path) end)

    local function use(calibration)
      return ctx:predictor{blocks = 4, q_heads = 1, kv_heads = 1, head_dim = 4,
        projection = {calibrated = calibration}}
    end

    -- Extents were taken at their word: a rank of 1.9 fitted the text "1", and 0.9 of a map was read beyond
    -- the end of the memory; a table could say any rank.
    it("that says other extents than its maps have is refused", function()
      local map, mean = ctx:buf{shape = {1, 4, 1}}:fill(1), ctx:buf{shape = {1, 4}}:fill(0)
      local tensors = {k_map = map, q_map = map, k_mean = mean}
      for _, rank in ipairs {"1.9", "0", "-1", "1e9", "nan", "inf"} do
        assert(ctx:save(path, tensors, {rank = rank, head_dim = "4", kv_heads = "1"}))
        local p, message, code = use(path)
        assert.is_nil(p)
        assert.are.equal("EFORMAT", code)
        assert.is_truthy(message:find("not a calibration: rank is out of range", 1, true), message)
      end
      raises("k_mean has the wrong shape (got f32[1, 4, 1], want f32[1, 4])", use, {k_map = map, q_map = map,
        k_mean = map, rank = 1, head_dim = 4, kv_heads = 1})
      raises("has the wrong shape (got f32[1, 4, 1], want f32[1, 4, 128])", use, {k_map = map, q_map = map,
        k_mean = mean, rank = 128, head_dim = 4, kv_heads = 1})
      assert(use{k_map = map, q_map = map, k_mean = mean, rank = 1, head_dim = 4, kv_heads = 1}):close()
    end)

    it("without captures, or with a hole among them, is refused", function()
      raises("calibrate: wants at least one capture", function() ctx:calibrate() end)
      raises("calibrate: wants captures, then options (got nil)", function() ctx:calibrate(nil, "a") end)
    end)

    it("of more heads than there may be is refused before anything is allocated", function()
      local k = ctx:buf{shape = {0, 2^30, 256}}
      raises("calibrate: k is out of range", function() ctx:calibrate({k = k}) end)
    end)

    it("onto its own capture is refused, by any name of it", function()
      assert(ctx:save(path, {k = ctx:buf{shape = {32, 1, 4}}:fill(1)}))
      local before = helper.read(path)
      for _, name in ipairs {path, "/./" .. path} do
        raises("calibrate: file is one of the captures", function()
          ctx:calibrate(path, {rank = 2, file = name})
        end)
      end
      assert.are.equal(before, helper.read(path))
    end)
  end)

  describe("of files", function()
    -- The file was mapped for reading only, and a write through its buffer ended the process.
    it("by writing into a loaded tensor stays in memory", function()
      local path = os.tmpname()
      assert(ctx:save(path, {k = ctx:from{1, 2, 3}}))
      local file = assert(ctx:load(path))
      assert.are.same({5, 5, 5}, list(file:get("k", "cpu"):fill(5)))
      local again = assert(ctx:load(path))
      assert.are.same({1, 2, 3}, list(again.k))
      again:close()
      file:close()
      os.remove(path)
    end)

    -- A tensor was one C array and one Lua string on its way into a file, of which neither may have 2 GiB.
    it("is not needed to save a large tensor: it goes in pieces, in order", function()
      local path = os.tmpname()
      local rows = ctx:zeros{shape = {1, 5, 2^24 + 1}, dtype = "u8"}
      for i = 0, 4 do rows[0][i]:slice(0, 2^24 - i, i + 1):fill(i + 1) end
      local turned = ctx:from{{1, 2, 3}, {4, 5, 6}}:permute{1, 0}
      assert(ctx:save(path, {rows = rows, turned = turned}))
      local file = assert(ctx:load(path))
      local before, after = rows:bytes(), file.rows:bytes()
      assert.are.equal(ffi.string(before, rows.n), ffi.string(after, rows.n))
      assert.are.same({1, 4, 2, 5, 3, 6}, list(file.turned))
      file:close()
      rows:close()
      os.remove(path)
    end)

    -- A rename put a file in the place of /dev/full. A pipe stands for it here.
    it("by saving over what is no file is refused", function()
      local path = os.tmpname()
      os.remove(path)
      for _, make in ipairs {"mkfifo", "mkdir"} do
        assert.are.equal("", helper.run(("%s %s"):format(make, path)))
        local ok, message, code = ctx:save(path, {k = ctx:from{1}})
        assert.is_nil(ok)
        assert.are.equal("EFILE", code)
        assert.is_truthy(message:find("cannot be written: ", 1, true), message)
        local text = helper.run(("test -f %s && echo replaced; ls -d %s"):format(path, path))
        assert.are.equal(path .. "\n", text)
        assert.are.equal("", helper.run(("rm -r %s"):format(path)))
      end
    end)
  end)

  -- The tensor's memory went with the context, while whoever had taken it still read there.
  it("of the order of closing leaves an exported tensor whole until it is given back", function()
    local exporter = assert(tide.open{device = "cpu"})
    tide.use(ctx)
    local b = exporter:from{1, 2, 3}
    local taken = assert(ctx:from_dlpack(b:to_dlpack()))
    local second = assert(ctx:from_dlpack(b[0] and b:slice(0, 1, 2):to_dlpack()))
    exporter:close()
    assert.are.same({1, 2, 3}, list(taken))
    taken:close()
    assert.are.same({2, 3}, list(second))
    second:close()
    raises("context: closed", function() b:read() end)
    b:close()
  end)
end)
