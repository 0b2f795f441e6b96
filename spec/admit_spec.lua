-- What a predictor will hold, said before it holds it.
local ffi = require "ffi"
local tide = require "tide"
local raw = require "spec.raw"
local lib = raw.lib

local GiB = 2 ^ 30

local function example(fields)
  local settings = {n_layers = 62, n_blocks = 8192, block_size = 16, n_q_heads = 64, n_kv_heads = 8,
    head_dim = 128,
    rank = 32, summary = lib.TIDE_SUMMARY_TOKENS, projection = lib.TIDE_PROJECTION_RANDOM}
  for name, value in pairs(fields or {}) do settings[name] = value end
  return settings
end

local function measure(fields)
  local sizes = ffi.new "tide_predictor_sizes"
  local status, message = raw.ask(function(s, text, n) return lib.tide_predictor_measure(s, sizes, text,
    n) end, fields)
  return status, message, sizes
end

local function admit(fields, free)
  return raw.ask(lib.tide_predictor_admit, fields, free)
end

describe("the size of a predictor", function()
  setup(function() raw.open() end)

  it("is n_layers * n_blocks * n_kv_heads * entries * rank * 2 bytes", function()
    local cases = {
      {{n_layers = 12, n_blocks = 16384, n_q_heads = 24, n_kv_heads = 2, head_dim = 256}, 384 * 2 ^ 20, 16,
        64},
      {{}, 3.875 * GiB, 16, 64},
      {{rank = 16}, 2080374784, 16, 32},
      {{summary = lib.TIDE_SUMMARY_MEAN}, 3.875 * GiB / 16, 1, 4},
      {{summary = lib.TIDE_SUMMARY_MINMAX}, 3.875 * GiB / 8, 2, 8},
      {{summary = lib.TIDE_SUMMARY_MEAN, projection = lib.TIDE_PROJECTION_IDENTITY, rank = 0},
        3.875 * GiB / 4, 1, 16},
      {{no_predict = 1}, 0, 16, 64},
    }
    for _, case in ipairs(cases) do
      local status, message, sizes = measure(example(case[1]))
      assert.are.equal("OK", status, message)
      assert.are.equal(case[2], tonumber(sizes.vectors_bytes))
      assert.are.equal(case[3], sizes.entries)
      assert.are.equal(case[4], sizes.bytes_per_token)
    end
  end)

  it("is what the ledger says once it is open, and nothing once it is closed", function()
    local function held(label)
      local lines, n, bytes = ffi.new "tide_mem_line[64]", ffi.new "int32_t[1]", 0
      assert(raw.outcome(lib.tide_mem_lines(tide.context():handle(), lines, 64, n)))
      for i = 0, n[0] - 1 do
        if ffi.string(lines[i].label) == label then bytes = bytes + tonumber(lines[i].bytes) end
      end
      return bytes
    end
    for summary = 0, 2 do
      for projection = 0, 1 do
        for aggregate = 0, 1 do
          for no_predict = 0, 1 do
            local label = ("sizes %d%d%d%d"):format(summary, projection, aggregate, no_predict)
            local fields = {n_layers = 3, n_blocks = 40, n_q_heads = 6, n_kv_heads = 2, head_dim = 24,
              summary = summary, projection = projection, aggregate = aggregate, no_predict = no_predict}
            local _, _, sizes = measure(fields)
            fields.label = label
            local p = assert(raw.predictor(fields))
            assert.are.equal(tonumber(sizes.vectors_bytes + sizes.scratch_bytes), held(label))
            p:close()
            assert.are.equal(0, held(label))
          end
        end
      end
    end
  end)

  it("refuses sizes that no machine counts", function()
    local status, message = measure(example {n_layers = 2 ^ 31 - 1, n_blocks = 2 ^ 31 - 1, n_kv_heads = 64})
    assert.are.equal("ERANGE", status)
    assert.matches("2%^63", message)
  end)

  it("refuses settings that make no sense, with both values", function()
    local cases = {
      {{n_blocks = 0}, "n_blocks: .*got 0"}, {{n_layers = -1}, "n_layers: .*got %-1"},
      {{block_size = -4}, "block_size: .*got %-4"}, {{n_kv_heads = 0}, "n_kv_heads: .*got 0"},
      {{n_q_heads = 12}, "n_q_heads: must be a multiple of n_kv_heads %(got 12 and 8%)"},
      {{head_dim = 257}, "head_dim: .*got 257, want 1..256"}, {{rank = 129}, "rank: .*got 129, want 1..128"},
      {{rank = -1}, "rank: .*got %-1, want 1..128"},
      {{projection = lib.TIDE_PROJECTION_IDENTITY}, "rank: .*got 32, want 128"},
      {{summary = 3}, "summary: .*got 3"}, {{projection = 7}, "projection: .*got 7"},
      {{aggregate = -1}, "aggregate: .*got %-1"}, {{max_rows = -2}, "max_rows: .*got %-2"},
      {{softmax_scale = -1}, "softmax_scale: .*got %-1"}, {{softmax_scale = 1 / 0},
        "softmax_scale: .*got inf"},
      {{softmax_scale = 0 / 0}, "softmax_scale: .*got .*nan"},
      {{k_map = ffi.new "float[1]"}, "k_map, q_map: .*calibrated"},
    }
    for _, case in ipairs(cases) do
      local status, message = measure(example(case[1]))
      assert.are.equal("EINVAL", status)
      assert.matches(case[2], message)
      assert.are.equal("EINVAL", (admit(example(case[1]), 2 ^ 40)))
    end
  end)
end)

describe("admission", function()
  it("refuses 3.875 GiB of 4 GiB, and takes half the rank", function()
    assert.are.equal("EMEM", (admit(example(), 4 * GiB)))
    assert.are.equal("OK", (admit(example {rank = 16}, 4 * GiB)))
  end)

  it("says what is needed, what there is, and every way to fit", function()
    local _, message = admit(example(), 4 * GiB)
    for _, part in ipairs {"3.875 GiB = 4160749568 bytes", "3.800 GiB = 4080218931 bytes",
      "rank %(32; 16 takes half%)",
      "n_blocks %(8192; half the sequence limit takes half%)", "narrower KV dtype",
        "lower memory utilisation",
      "n_layers 62 %* n_blocks 8192 %* n_kv_heads 8 %* entries 16 %* rank 32 %* 2"} do
      assert.matches(part, message)
    end
  end)

  it("draws the line at floor(free * 95 / 100)", function()
    local need = 4160749568
    local free = math.ceil(need * 100 / 95)
    assert.are.equal("OK", (admit(example(), free)))
    assert.are.equal("EMEM", (admit(example(), free - 1)))
    assert.are.equal("EMEM", (admit(example(), -1)))
    assert.are.equal("OK", (admit(example(), 0x7fffffffffffffffLL)))
  end)

  it("is asked when a predictor opens, before anything is allocated", function()
    local ctx = assert(require("tide.context").open{device = "cpu", host_limit = 64 * 2 ^ 20})
    local fields = {n_blocks = 65536, n_q_heads = 8, n_kv_heads = 8, head_dim = 64, label = "too large"}
    local p, message, code = raw.predictor(fields, ctx)
    assert.is_nil(p)
    assert.are.equal("EMEM", code)
    assert.matches("predictor: its vectors do not fit in 95 %%", message)
    local n = ffi.new "int32_t[1]"
    lib.tide_mem_lines(ctx:handle(), nil, 0, n)
    assert.are.equal(0, n[0])
    fields.n_blocks = 1024
    assert(raw.predictor(fields, ctx)):close()
    ctx:close()
  end)
end)
