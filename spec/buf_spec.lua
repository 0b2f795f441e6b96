-- Buffers from Lua: making, viewing, moving, reading; ids and indices count from 0.

local ffi = require "ffi"
local tide = require "tide"
local buf = require "tide.buf"

local function values(b) return b:read():totable() end

describe("a buffer", function()
  local ctx
  setup(function() ctx = assert(tide.open{device = "cpu"}) end)
  teardown(function() ctx:close() end)

  it("holds the numbers of a nested list", function()
    local b = tide.from{{1, 2, 3}, {4, 5, 6}}
    assert.are.same({2, 3}, b.shape)
    assert.are.equal(6, b.n)
    assert.are.equal("f32", b.dtype)
    assert.are.equal("cpu", b.device)
    assert.are.same({{1, 2, 3}, {4, 5, 6}}, values(b))
  end)

  it("holds small integers in every dtype", function()
    for _, dtype in ipairs(buf.dtypes) do
      local b = tide.from({0, 1, 2, 3, 96}, dtype)
      assert.are.equal(dtype, b.dtype)
      assert.are.same({0, 1, 2, 3, 96}, values(b), dtype)
    end
  end)

  it("rounds to nearest even where the dtype is narrow", function()
    assert.are.same({1, 1.015625}, values(tide.from({1 + 2^-8, 1 + 3 * 2^-8}, "bf16")))
    assert.are.same({1, 1 + 2^-9}, values(tide.from({1 + 2^-11, 1 + 3 * 2^-11}, "f16")))
    assert.are.same({448, 448}, values(tide.from({448, 1000}, "f8e4m3")))
  end)

  it("may be one number or none", function()
    assert.are.equal(7, tide.from({7}, {shape = {}}):read()[0])
    local none = tide.buf{shape = {0, 4}}
    assert.are.equal(0, none.n)
    assert.are.equal(0, none:read().n)
    assert.are.equal(0, none:describe().n)
  end)

  it("refuses numbers that its integers cannot hold", function()
    for dtype, value in pairs{u8 = 256, i32 = 2^31, u32 = -1, i64 = 2.5} do
      assert.has_error(function() tide.from({value}, dtype) end)
    end
    local ok, message = pcall(tide.from, {256}, "u8")
    assert.is_false(ok)
    assert.is_truthy(message:find("element of u8: wants an integer in 0..255 (got 256)", 1, true), message)
  end)

  it("refuses a ragged list and says where", function()
    local ok, message = pcall(tide.from, {{1, 2}, {3}})
    assert.is_false(ok)
    assert.is_truthy(message:find("wrong length in dimension 1 (got 1, want 2)", 1, true), message)
  end)

  it("is indexed from 0: a view, and a number in the last dimension", function()
    local b = tide.from{{1, 2, 3}, {4, 5, 6}}
    assert.are.same({4, 5, 6}, values(b[1]))
    assert.are.equal(6, b[1][2])
    assert.has_error(function() return b[2] end)
    assert.has_error(function() return b[0][3] end)
    assert.has_error(function() return b[-1] end)
    assert.has_error(function() return b[0.5] end)
  end)

  it("shares memory with its views", function()
    local b = tide.zeros{shape = {4, 2}}
    b:slice(0, 1, 2):fill(5)
    b[3]:write{8, 9}
    assert.are.same({{0, 0}, {5, 5}, {5, 5}, {8, 9}}, values(b))
  end)

  it("is seen in another order or shape", function()
    local b = tide.from{{1, 2, 3}, {4, 5, 6}}
    assert.are.same({{1, 4}, {2, 5}, {3, 6}}, values(b:permute{1, 0}))
    assert.are.same({{1, 2}, {3, 4}, {5, 6}}, values(b:reshape{3, -1}))
    assert.are.same({{2, 3}, {5, 6}}, values(b:slice(1, 1, 2)))
    assert.are.equal(5, b:permute{1, 0}[1][1])
    assert.has_error(function() b:permute{0} end)
    assert.has_error(function() b:permute{0, 0} end)
    assert.has_error(function() b:reshape{4, -1} end)
    assert.has_error(function() b:reshape{-1, -1} end)
    assert.has_error(function() b:permute{1, 0}:reshape{6} end)
  end)

  it("is copied with a change of dtype, device or strides", function()
    local b = tide.from{{1, 2, 3}, {4, 5, 6}}
    local half = b:to "bf16"
    assert.are.equal("bf16", half.dtype)
    assert.are.same(values(b), values(half))
    assert.are.same({{1, 4}, {2, 5}, {3, 6}}, values(b:permute{1, 0}:to("cpu", "i64")))
    local target = tide.zeros{shape = {3, 2}, dtype = "f16"}
    assert.are.equal(target, target:copy(b:permute{1, 0}))
    assert.are.same({{1, 4}, {2, 5}, {3, 6}}, values(target))
    assert.has_error(function() target:copy(b) end)
    assert.has_error(function() b:to "f31" end)
    assert.has_error(function() b:to("cpu", "f31") end)
  end)

  it("is written from a list, an array or C memory", function()
    local b = tide.zeros{shape = {2, 2}}
    assert.are.same({{1, 2}, {3, 4}}, values(b:write{1, 2, 3, 4}))
    assert.are.same({{5, 6}, {7, 8}}, values(b:write{{5, 6}, {7, 8}}))
    assert.are.same({{1, 2}, {3, 4}}, values(b:write(ffi.new("float[4]", 1, 2, 3, 4))))
    assert.are.same({{5, 6}, {7, 8}}, values(b:write(tide.from({{5, 6}, {7, 8}}, "bf16"):read())))
    assert.has_error(function() b:write{1, 2, 3} end)
    assert.has_error(function() b:write(ffi.new "float[3]") end)
    assert.has_error(function() b:write "1234" end)
    assert.are.same({{5, 6}, {7, 8}}, values(b))
  end)

  it("is read into an array that counts from 0 and knows its ends", function()
    local array = tide.from{10, 20, 30}:read()
    assert.are.equal(3, array.n)
    assert.are.equal(10, array[0])
    assert.are.equal(30, array[2])
    assert.are.equal(20, tonumber(array.pointer[1]))
    assert.has_error(function() return array[3] end)
    assert.has_error(function() return array[-1] end)
  end)

  it("has its largest elements by id: ties to the lower id, NaN last", function()
    local nan = 0 / 0
    assert.are.same({1, 3}, values(tide.from{1, 5, 2, 5, 5}:topk(2)))
    assert.are.same({0, 1, 2}, values(tide.from{3, nan, -1, nan}:topk(3)))
    assert.are.same({{1}, {0}}, values(tide.from{{1, 2}, {4, 3}}:topk(1)))
    assert.are.same({0, 1}, values(tide.from({9, 8}, "i32"):topk(7)))
    assert.are.equal("i32", tide.from{1}:topk(1).dtype)
    assert.has_error(function() tide.from{1}:topk(-1) end)
  end)

  it("is described without counting NaN or infinity into its mean", function()
    local stats = tide.from{1, 0 / 0, 3, math.huge, 0}:describe()
    assert.are.same({5, 1, 1, 1}, {stats.n, stats.n_nan, stats.n_inf, stats.n_zero})
    assert.are.equal(0, stats.min)
    assert.are.equal(3, stats.max)
    assert.are.equal(2, stats.max_at)
    assert.is_true(math.abs(stats.mean - 4 / 3) < 1e-12)
    assert.are.equal(5, #stats.bins)
  end)

  it("is one line as text, and cannot be assigned to", function()
    local b = tide.zeros{shape = {145}}
    assert.are.equal("buf f32[145] cpu", tostring(b))
    b:close()
    assert.are.equal("buf f32[145] (closed)", tostring(b))
    assert.has_error(function() b[0] = 1 end)
  end)

  it("wraps memory that Lua owns, for as long as a view of it lives", function()
    local memory = ffi.new("float[6]", 1, 2, 3, 4, 5, 6)
    local b = tide.wrap(memory, "f32", {2, 3}, {device = "cpu"})
    b[1]:fill(9)
    assert.are.equal(9, memory[5])
    local row = b[0]
    b:close()
    memory = nil -- luacheck: no unused
    collectgarbage()
    assert.are.same({1, 2, 3}, values(row))
    assert.has_error(function() tide.wrap({}, "f32", {1}) end)
  end)

  it("stands in the ledger under its label until it closes", function()
    local b = tide.buf{shape = {10, 100}, label = "mine"}
    local function held()
      for _, line in ipairs(tide.mem()) do
        if line.label == "mine" then return line.bytes, line.peak_bytes end
      end
    end
    assert.are.equal(4000, (held()))
    local view = b[1]
    b:close()
    assert.are.equal(4000, (held()))
    view:close()
    assert.are.equal(0, (held()))
    assert.are.equal(4000, select(2, held()))
  end)

  it("on the null device is accounted for and holds nothing", function()
    local null = assert(require("tide.context").open{device = "null"})
    local b = assert(null:buf{shape = {2^20, 1024}, label = "huge"})
    assert.are.equal("null", b.device)
    assert.are.equal(2^32, null:mem()[1].bytes)
    null:close()
  end)
end)

describe("a buffer on a cuda device #gpu", function()
  local ctx
  setup(function() ctx = assert(tide.open{device = "cuda:0"}) end)
  teardown(function() ctx:close() end)

  it("holds, shows and moves what was written", function()
    for _, dtype in ipairs(buf.dtypes) do
      local b = tide.from({{1, 2, 3}, {4, 5, 6}}, dtype)
      assert.are.equal("cuda:0", b.device)
      assert.are.same({{1, 2, 3}, {4, 5, 6}}, values(b), dtype)
      assert.are.same({{1, 4}, {2, 5}, {3, 6}}, values(b:permute{1, 0}:to "cpu"), dtype)
      assert.are.equal(6, b[1][2])
      assert.are.equal(3.5, b:describe().mean)
    end
  end)

  it("is copied to pinned host memory that is ready when the call returns", function()
    local far = tide.zeros{shape = {2^22}}
    local near = tide.buf{shape = {2^22}, device = "cpu", pinned = true}
    for round = 1, 20 do
      far:fill(round)
      assert.are.equal(round, near:copy(far):read()[2^22 - 1])
    end
  end)

  it("is ranked, exported and taken back", function()
    local b = tide.from{1, 5, 2, 5}
    local best = b:topk(2)
    assert.are.equal("cuda:0", best.device)
    assert.are.same({1, 3}, values(best))
    local back = assert(tide.from_dlpack(b:to_dlpack()))
    assert.are.equal("cuda:0", back.device)
    b:close()
    assert.are.same({1, 5, 2, 5}, values(back))
  end)

  it("comes from a file when first asked for, and from the host when asked for there", function()
    local c = assert(tide.load "spec/data/harbour.safetensors")
    assert.are.equal("cuda:0", c.k.device)
    assert.are.equal("cpu", assert(c:get("k", "cpu")).device)
    assert.are.same(values(c.k[7]), values(c:get("k", "cpu")[7]))
  end)
end)

describe("a buffer of NaN", function()
  -- LuaJIT keeps the types of its values in the bits of NaN. Read through the FFI as it stood, the f32
  -- pattern 0xffffffff came out as nil, and a file could choose other patterns.
  it("reads as numbers, whatever the bits of a NaN", function()
    local bits = ffi.new("uint32_t[4]", 0xffffffff, 0xfff80001, 0x7fffffff, 0x3f800000)
    local b = tide.from({0, 0, 0, 0}, "f32")
    local floats = ffi.new "float[4]"
    ffi.copy(floats, bits, 16)
    b:write(floats)
    local a = b:read()
    for i = 0, 2 do
      assert.are.equal("number", type(a[i]))
      assert.is_true(a[i] ~= a[i])
    end
    assert.are.equal(1, a[3])
    assert.are.equal("number", type(a:flat()[1]))
    assert.are.equal("number", type(a:totable()[1]))
    assert.are.equal("number", type(b[0]))
  end)
end)
