-- Predictors, attention and gathering on a CUDA device: the specs of the cpu, word for word; and in a
-- captured graph.
local ffi = require "ffi"
local tide = require "tide"
local raw = require "spec.raw"
local lib = raw.lib

describe("on a CUDA device #gpu", function()
  setup(function() raw.device = "cuda:0" end)
  teardown(function() raw.device = nil end)

  for _, name in ipairs {"predictor", "append", "attend", "predictor_reference", "calibrate",
    "planted_keys"} do
    local path = "spec/" .. name .. "_spec.lua"
    describe("(" .. path .. ")", setfenv(assert(loadfile(path)), getfenv(1)))
  end

  it("a captured graph writes, appends, forgets and scores what its buffers hold when it is replayed",
    function()
    local ctx = raw.open()
    local handle, stream, graph = ctx:handle(), ffi.new "void *[1]", ffi.new "tide_graph *[1]"
    local function check(status) assert(raw.outcome(status)) end
    check(lib.tide_stream_new(handle, 0, stream))
    local fields = {n_blocks = 64, n_q_heads = 8, n_kv_heads = 2, head_dim = 64, rank = 32, max_rows = 2,
      projection = lib.TIDE_PROJECTION_RANDOM}
    for summary = lib.TIDE_SUMMARY_MEAN, lib.TIDE_SUMMARY_MINMAX do
      fields.summary = summary
      local p, eager = assert(raw.predictor(fields)), assert(raw.predictor(fields))
      local k, q = raw.noise({1024, 2, 64}, 1), raw.noise({3, 8, 64}, 2)
      local piece, gone = raw.noise({20, 2, 64}, 3), tide.from({7, 63}, "i32")
      local scores = tide.buf{shape = {3, 64}}
      local function enqueue()
        check(lib.tide_predictor_write(p._handle, 0, k._view, nil, nil, 0, stream[0]))
        check(lib.tide_predictor_append(p._handle, 0, 0, piece._view, nil, stream[0]))
        check(lib.tide_predictor_forget(p._handle, 0, gone._view, stream[0]))
        check(lib.tide_predictor_score(p._handle, 0, q._view, nil, scores._view, stream[0]))
      end
      enqueue()
      check(lib.tide_sync(handle, 0, stream[0]))
      check(lib.tide_graph_begin(handle, 0, stream[0]))
      enqueue()
      check(lib.tide_graph_end(handle, 0, stream[0], graph))
      k:copy(raw.noise({1024, 2, 64}, 4))
      q:copy(raw.noise({3, 8, 64}, 5))
      assert(ctx:sync())
      check(lib.tide_graph_replay(graph[0], stream[0]))
      check(lib.tide_sync(handle, 0, stream[0]))
      assert(eager:write(k))
      assert(eager:append(piece))
      assert(eager:forget{blocks = gone})
      assert.are.same(eager:score(q):read():totable(), scores:read():totable())
      lib.tide_graph_close(graph[0])
      p:close()
      eager:close()
    end
    check(lib.tide_stream_free(handle, 0, stream[0]))
  end)
end)
