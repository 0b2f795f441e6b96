-- A prompt that arrives in pieces leaves the same bits as one that arrives whole.
local ffi = require "ffi"
local tide = require "tide"
local raw = require "spec.raw"
local lib = raw.lib

local n_tokens, size, n_blocks = 22, 4, 8

local function open(fields)
  local settings = {n_layers = 2, n_blocks = n_blocks, block_size = size, n_q_heads = 2, n_kv_heads = 2,
    head_dim = 8}
  for name, value in pairs(fields or {}) do settings[name] = value end
  return assert(raw.predictor(settings))
end

local function each_kind(f)
  for summary = lib.TIDE_SUMMARY_MEAN, lib.TIDE_SUMMARY_MINMAX do
    for projection = lib.TIDE_PROJECTION_IDENTITY, lib.TIDE_PROJECTION_RANDOM do
      f({summary = summary, projection = projection,
        rank = projection == lib.TIDE_PROJECTION_RANDOM and 3 or 0})
    end
  end
end

local function keys(n, dtype) return raw.noise({n or n_tokens, 2, 8}, 1, 1, dtype) end

-- The bits of every block of a layer, "" for one that holds nothing.
local function contents(p, layer)
  local blocks = {}
  for block = 0, n_blocks - 1 do
    local stored = p:slot(layer, block)
    blocks[block + 1] = stored and ffi.string(stored:bytes()) or ""
  end
  return blocks
end

local function append(p, k, piece, options)
  options = options or {}
  for first = 0, k.shape[1] - 1, piece do
    options.first = first
    assert(p:append(k:slice(0, first, math.min(piece, k.shape[1] - first)), options))
  end
end

describe("append", function()
  setup(function() raw.open() end)

  it("in pieces of any size leaves the bits of one write", function()
    each_kind(function(kind)
      local whole = open(kind)
      local k = keys()
      assert(whole:write(k, {layer = 1}))
      local want = contents(whole, 1)
      assert.are.equal("", want[6])
      for piece = 1, n_tokens do
        local p = open(kind)
        append(p, k, piece, {layer = 1})
        assert.are.same(want, contents(p, 1))
        assert.are.same({"", "", "", "", "", "", "", ""}, contents(p, 0))
        p:close()
      end
      whole:close()
    end)
  end)

  it("puts blocks where the table says, which may grow with the sequence", function()
    each_kind(function(kind)
      local order, k = {6, 2, 7, 0, 3}, keys()
      local whole = open(kind)
      assert(whole:write(k, {dst = tide.from(order, "i32")}))
      for _, piece in ipairs {1, 3, 5, 22} do
        local p = open(kind)
        for first = 0, n_tokens - 1, piece do
          local n = math.min(piece, n_tokens - first)
          local known = {}
          for i = 1, math.floor((first + n) / size) do known[i] = order[i] end
          local table = #known > 0 and tide.from(known, "i32") or tide.buf{dtype = "i32", shape = {0}}
          assert(p:append(k:slice(0, first, n), {first = first, table = table}))
        end
        assert.are.same(contents(whole, 0), contents(p, 0))
        p:close()
      end
      whole:close()
    end)
  end)

  it("takes f16 and bf16 keys and strided ones as they are", function()
    for _, dtype in ipairs {"f16", "bf16"} do
      local k, whole, p = keys(nil, dtype), open(), open()
      local wide = tide.buf{dtype = dtype, shape = {n_tokens, 2, 24}}:slice(2, 8, 8)
      wide:copy(k)
      assert(whole:write(k))
      append(p, wide, 3)
      assert.are.same(contents(whole, 0), contents(p, 0))
    end
  end)

  it("summarises a block once its last token has come", function()
    local p, k, q = open(), keys(), raw.noise({2, 8}, 2)
    assert(p:append(k:slice(0, 0, 7)))
    assert.are.equal(-math.huge, p:score(q):read()[1])
    assert(p:append(k:slice(0, 7, 1), {first = 7}))
    assert.is_true(p:score(q):read()[1] > -math.huge)
    assert(p:append(k:slice(0, 8, 0), {first = 8}))
    assert(p:append(k:slice(0, 8, 4), {first = 8}))
    assert.is_true(p:score(q):read()[2] > -math.huge)
  end)

  it("starts anew at token 0, whatever was staged", function()
    local p, fresh, k, other = open(), open(), keys(), raw.noise({n_tokens, 2, 8}, 5)
    assert(p:append(other:slice(0, 0, 7)))
    append(p, k, 5)
    append(fresh, k, 5)
    assert.are.same(contents(fresh, 0), contents(p, 0))
  end)

  it("keeps the sequences of two layers apart", function()
    local p, k = open(), keys()
    for first = 0, n_tokens - 1, 2 do
      for layer = 0, 1 do assert(p:append(k:slice(0, first, 2), {first = first, layer = layer})) end
    end
    assert.are.same(contents(p, 0), contents(p, 1))
  end)

  it("refuses a gap with both positions, and goes on as if nothing had been asked", function()
    local p, whole, k = open(), open(), keys()
    local function piece(first, n) return raw.outcome(lib.tide_predictor_append(p._handle, 0, first,
      k:slice(0, first, n)._view, nil, nil)) end
    local function refused(code, pattern, ok, message, got)
      assert.is_nil(ok)
      assert.are.equal(code, got)
      assert.matches(pattern, message)
    end
    assert(piece(0, 6))
    refused("ESTATE", "got first_token 8, want 6, or 0 to start anew", piece(8, 2))
    refused("ESTATE", "got first_token 5, want 6", piece(5, 2))
    refused("ESTATE", "got first_token %-1, want 6",
      raw.outcome(lib.tide_predictor_append(p._handle, 0, -1, k._view, nil, nil)))
    refused("EDTYPE", "changes its dtype within a block .*got f16, want f32",
      raw.outcome(lib.tide_predictor_append(p._handle, 0, 6, k:slice(0, 6, 2):to("f16")._view, nil, nil)))
    refused("ESHAPE", "table is too short .*got 1 blocks, want 2 for 8 tokens",
      raw.outcome(lib.tide_predictor_append(
      p._handle, 0, 6, k:slice(0, 6, 2)._view, tide.from({3}, "i32")._view, nil)))
    refused("ESHAPE", "append: k: wrong shape", raw.outcome(lib.tide_predictor_append(
      p._handle, 0, 6, tide.buf{shape = {1, 4, 2, 8}}._view, nil, nil)))
    assert(piece(6, 16))
    assert(whole:write(k))
    assert.are.same(contents(whole, 0), contents(p, 0))
    refused("ERANGE", "append: k: the blocks do not fit .*got 0..8, want within 0..7",
      raw.outcome(lib.tide_predictor_append(p._handle, 0, 22, keys(14)._view, nil, nil)))
  end)

  it("changes its dtype between blocks if it likes", function()
    local p, k = open(), keys(8)
    assert(p:append(k:slice(0, 0, 4)))
    assert(p:append(k:slice(0, 4, 2):to("bf16"), {first = 4}))
    assert(p:append(k:slice(0, 6, 2):to("bf16"), {first = 6}))
    assert.are_not.equal("", contents(p, 0)[2])
  end)
end)
