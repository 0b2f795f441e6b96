--- The cases of `tide bench`, the ceilings they are held against, and the memory they run on.
-- @module tide.bench_cases

local ffi = require "ffi"
local bit = require "bit"
local cdef = require "tide.cdef"
local lib = cdef.lib

local cases = {}

------------------------------------------------------------------------------------------------ memory

local function read_line(path)
  local file = io.open(path)
  local line = file and file:read "*l"
  if file then file:close() end
  return line
end

-- Bytes of the last-level cache of the first core, 32 MiB where the kernel does not say.
local function last_level_cache()
  for index = 4, 0, -1 do
    local size = read_line(("/sys/devices/system/cpu/cpu0/cache/index%d/size"):format(index))
    if size then return tonumber(size:match "%d+") * 1024 end
  end
  return 2 ^ 25
end

local function describe(ctx)
  local info = ffi.new "tide_device_info"
  assert(lib.tide_device_describe(ctx:handle(), 0, info) == 0)
  return ffi.string(info.model), info.n_processors
end

-- Random bits with exponents around 1: a memory that compresses would flatter.
local CHUNK = 2 ^ 20
local function random_chunk()
  local words, state = ffi.new("uint32_t[?]", CHUNK), 1
  for i = 0, CHUNK - 1 do
    state = (state * 16807) % 2147483647
    words[i] = bit.bor(bit.band(state * 2, 0x80ff80ff), 0x3f003f00)
  end
  return words
end

--- What a case runs on.
-- @tparam context ctx
-- @treturn table ctx, handle, lib, is_cuda, model, processors, rotate_bytes, sweep_bytes,
-- array(bytes), arrays, hold, check, release, launch
function cases.env(ctx)
  local env = {ctx = ctx, handle = ctx:handle(), lib = lib, is_cuda = ctx.device:find "^cuda" ~= nil}
  env.model, env.processors = describe(ctx)
  local cache = env.is_cuda and 2 ^ 26 or last_level_cache()
  env.rotate_bytes = math.min(4 * cache, 2 ^ 30)
  env.sweep_bytes = env.is_cuda and 2 ^ 30 or env.rotate_bytes
  local chunk, held = random_chunk(), {}

  function env.check(status)
    if status ~= 0 then error(ffi.string(lib.tide_errmsg(env.handle)), 0) end
  end

  -- Random bytes on the device, until release; answers the address.
  function env.array(bytes)
    local words = math.ceil(bytes / 4)
    local b = assert(ctx:buf{dtype = "u32", shape = {words}, label = "bench"})
    held[#held + 1] = b
    for first = 0, words - 1, CHUNK do
      local n = math.min(CHUNK, words - first)
      local slice = b:slice(0, first, n)
      env.check(lib.tide_buf_write(slice._handle, chunk, n * 4))
      slice:close()
    end
    return b._view.data
  end

  -- n arrays, one for each set of buffers.
  function env.arrays(n, bytes)
    local list = {}
    for i = 0, n - 1 do list[i] = env.array(bytes) end
    return list
  end

  function env.hold(object)
    held[#held + 1] = object
    return object
  end

  function env.release()
    for i = #held, 1, -1 do held[i]:close() end
    held = {}
    collectgarbage()
  end

  -- run(i) of a kernel: fill(args, i) sets what changes from call to call.
  function env.launch(name, fixed, change)
    local args = cdef.kernel(name)()
    for key, value in pairs(fixed) do args[key] = value end
    change(args, 0)
    local scratch = tonumber(lib.tide_kernel_scratch(name, args, ffi.sizeof(args)))
    if scratch > 0 then args.scratch = ffi.cast("void *", env.array(scratch * 4)) end
    return function(i)
      change(args, i % env.copies)
      env.check(lib.tide_kernel_run(env.handle, 0, name, nil, args, ffi.sizeof(args), nil))
    end
  end
  return env
end

local function pointer(address) return ffi.cast("void *", address) end

------------------------------------------------------------------------------------------------ ceilings

-- Reads: eight accumulators on every core, or a block a piece. Copies count what is read and what is written.
function cases.ceilings(env)
  local bytes = env.sweep_bytes

  local function read()
    local n, pieces = bytes / 4, env.is_cuda and env.processors * 8 or 256
    local piece = math.ceil(n / pieces / 4) * 4
    local x, out = env.array(bytes), env.array(pieces * 4)
    return env.launch("sum", {n = n, piece = piece, n_pieces = pieces}, function(args)
      args.x, args.out = pointer(x), pointer(out)
    end)
  end

  local function copy()
    local half = bytes / 2
    local dst, src = env.array(half), env.array(half)
    local fixed = {dst_dtype = lib.TIDE_U32, src_dtype = lib.TIDE_U32, n_dims = 1}
    return env.launch("copy", fixed, function(args)
      args.dst, args.src, args.shape[0] = pointer(dst), pointer(src), half / 4
      args.dst_stride[0], args.src_stride[0] = 1, 1
    end)
  end

  local function launch()
    local marks = env.array(256)
    return env.launch("mark", {n_rows = 1, n_marks = 1, n = 1, stride = 1}, function(args)
      args.marks = pointer(marks)
    end)
  end

  local list = {
    {name = "read", bytes = bytes, gbs = "read_gbs", rotates = false, make = read},
    {name = "copy", bytes = bytes, gbs = "copy_gbs", rotates = false, make = copy},
  }
  if env.is_cuda then
    list[3] = {name = "launch", bytes = 0, us = "launch_us", rotates = false, make = launch}
  end
  return list
end

------------------------------------------------------------------------------------------------ cases

local Q_HEADS, KV_HEADS, DIM, RANK, SIZE = 32, 8, 128, 32, 16

-- Keys of blocks x 16 tokens x 8 heads, 128 wide, to 32.
local function project(name, shape, blocks, tokens, heads, floor)
  local x_bytes, y_bytes = blocks * tokens * heads * DIM * 2, blocks * tokens * heads * RANK * 2
  return {name = name, shape = shape, bytes = x_bytes + y_bytes, floor = floor, make = function(env)
    local x, y = env.arrays(env.copies, x_bytes), env.arrays(env.copies, y_bytes)
    local p = env.array(DIM * RANK * 2)
    return env.launch("lowrank_project", {x_block_stride = tokens * heads * DIM, x_token_stride = heads * DIM,
      x_head_stride = DIM, x_dtype = lib.TIDE_BF16, n_blocks = blocks, block_size = tokens, n_heads = heads,
      n_maps = 1, head_dim = DIM, rank = RANK, n_x_blocks = blocks, n_y_blocks = blocks}, function(args, i)
      args.x, args.y, args.p = pointer(x[i]), pointer(y[i]), pointer(p)
    end)
  end}
end

local function score(name, tokens, mass)
  local blocks = tokens / SIZE
  local bytes = tokens * KV_HEADS * RANK * 2
  return {name = name, shape = ("%dk tokens, 32/8 heads, rank 32, blocks of 16"):format(tokens / 1024),
    bytes = bytes + blocks * 4, floor = "read", make = function(env)
      local keys, q = env.arrays(env.copies, bytes), env.array(Q_HEADS * RANK * 2)
      local scores = env.array(blocks * 4)
      return env.launch("score_blocks", {n_rows = 1, n_q_heads = Q_HEADS, n_kv_heads = KV_HEADS, rank = RANK,
        n_entries = SIZE, n_pool = blocks, n_blocks = blocks, mass = mass, scale = DIM ^ -0.5,
        scores_stride = blocks}, function(args, i)
        args.q, args.keys, args.scores = pointer(q), pointer(keys[i]), pointer(scores)
      end)
    end}
end

local function summarize(name, tokens)
  local blocks = tokens / SIZE
  local x_bytes, y_bytes = tokens * KV_HEADS * DIM * 2, blocks * KV_HEADS * DIM * 2
  return {name = name, shape = ("%dk tokens x 8 heads x 128, blocks of 16"):format(tokens / 1024),
    bytes = x_bytes + y_bytes, floor = "read", make = function(env)
      local x, y = env.arrays(env.copies, x_bytes), env.array(y_bytes)
      return env.launch("summarize_blocks", {x_block_stride = SIZE * KV_HEADS * DIM,
        x_token_stride = KV_HEADS * DIM, x_head_stride = DIM, x_dtype = lib.TIDE_BF16, n_blocks = blocks,
        block_size = SIZE, n_heads = KV_HEADS, dim = DIM, n_x_blocks = blocks, n_y_blocks = blocks},
        function(args, i) args.x, args.y = pointer(x[i]), pointer(y) end)
    end}
end

local function attend(name, tokens)
  local blocks, per_token = tokens / SIZE, KV_HEADS * DIM
  local bytes = tokens * per_token * 2
  return {name = name, shape = ("1 row, %dk tokens, 32/8 heads x 128, bf16"):format(tokens / 1024),
    bytes = 2 * bytes, floor = "read", make = function(env)
      local k, v = env.arrays(env.copies, bytes), env.arrays(env.copies, bytes)
      local q, out, lse = env.array(Q_HEADS * DIM * 4), env.array(Q_HEADS * DIM * 4), env.array(Q_HEADS * 4)
      return env.launch("attend", {q_row_stride = Q_HEADS * DIM, q_head_stride = DIM,
        k_block_stride = SIZE * per_token, k_token_stride = per_token, k_head_stride = DIM,
        v_block_stride = SIZE * per_token, v_token_stride = per_token, v_head_stride = DIM,
        scale = DIM ^ -0.5, v_scale = 1, q_dtype = lib.TIDE_F32, kv_dtype = lib.TIDE_BF16,
        n_rows = 1, n_q_heads = Q_HEADS,
        n_kv_heads = KV_HEADS, head_dim = DIM, block_size = SIZE, n_blocks = blocks, n_pool = blocks,
        n_tokens = tokens, first_position = tokens}, function(args, i)
        args.q, args.k, args.v = pointer(q), pointer(k[i]), pointer(v[i])
        args.out, args.lse = pointer(out), pointer(lse)
      end)
    end}
end

-- What a script pays for a call that has nothing to do.
local function lua_score_empty()
  return {name = "lua_score_empty", shape = "predictor:score of no blocks, from Lua", bytes = 0,
    on_host = true, make = function(env)
      local ctx = env.ctx
      local p = env.hold(assert(ctx:predictor{blocks = 64, q_heads = Q_HEADS, kv_heads = KV_HEADS,
        head_dim = DIM, summary = "tokens", projection = {random = true}}))
      local q = env.hold(assert(ctx:zeros{shape = {Q_HEADS, DIM}}))
      local options = {n = 0, out = env.hold(assert(ctx:buf{shape = {0}}))}
      return function() p:score(q, options) end
    end}
end

--- All cases, in the order they are printed.
function cases.cases()
  return {
    project("project_batched", "128k tokens x 8 heads, 128 -> 32", 8192, SIZE, KV_HEADS, "mixed"),
    project("project_block", "one block of 16 tokens x 8 heads, 128 -> 32", 1, SIZE, KV_HEADS, "launch"),
    project("project_q", "one row of 32 heads, 128 -> 32", 1, 1, Q_HEADS, "launch"),
    score("score_max_128k", 2 ^ 17, 0), score("score_max_1m", 2 ^ 20, 0),
    score("score_mass_128k", 2 ^ 17, 1), score("score_mass_1m", 2 ^ 20, 1),
    summarize("summarize_mean_128k", 2 ^ 17),
    attend("attend_decode", 2 ^ 15),
    lua_score_empty(),
  }
end

cases.names = {}
for i, case in ipairs(cases.cases()) do cases.names[i] = case.name end

return cases
