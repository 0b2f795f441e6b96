-- The CUDA backend as an engine sees it: memory, streams, events, graphs, peers, and the order of closing.

local ffi = require "ffi"
local helper = require "spec.helper"
local clock = require "tide.clock"
local C = require("tide.cdef").lib

local GIB = 2 ^ 30
local contexts = {}

-- Every context of a test is closed after it, also when the test fails.
local function open(device)
  local out, why = ffi.new "tide_ctx *[1]", ffi.new "char[512]"
  local status = C.tide_ctx_open(ffi.new("tide_ctx_settings", {device = device or "cuda"}), out, why, 512)
  if status ~= 0 then return nil, ffi.string(why), status end
  contexts[#contexts + 1] = out[0]
  return out[0]
end

local function need(device)
  local ctx, why = open(device)
  if not ctx then helper.skip(why) end
  return ctx
end

local function close(ctx)
  for i, open_one in ipairs(contexts) do
    if open_one == ctx then table.remove(contexts, i) end
  end
  C.tide_ctx_close(ctx)
end

local function ok(ctx, status)
  if status ~= 0 then error(ffi.string(C.tide_errmsg(ctx)), 2) end
end

local function new_buf(ctx, dtype, shape, settings)
  settings = settings or {}
  local struct, out = ffi.new "tide_buf_settings", ffi.new "tide_buf *[1]"
  struct.dtype, struct.n_dims = dtype, #shape
  for i, extent in ipairs(shape) do struct.shape[i - 1] = extent end
  struct.device, struct.pinned = settings.device or 0, settings.pinned and 1 or 0
  ok(ctx, C.tide_buf_new(ctx, struct, out))
  return ffi.gc(out[0], C.tide_buf_close)
end

local function derived(ctx, f, b, ...)
  local out = ffi.new "tide_buf *[1]"
  local arguments = {...}
  arguments[#arguments + 1] = out
  ok(ctx, f(b, unpack(arguments)))
  return ffi.gc(out[0], C.tide_buf_close)
end

local function slice(ctx, b, dim, first, count)
  return derived(ctx, C.tide_buf_slice, b, dim, first, count)
end

local function permute(ctx, b, order)
  return derived(ctx, C.tide_buf_permute, b, ffi.new("int32_t[5]", order))
end

local function view(b)
  local v = ffi.new "tide_view"
  assert.equal(0, C.tide_buf_view(b, v))
  return v
end

local function close_buf(b) C.tide_buf_close(ffi.gc(b, nil)) end

-- Bytes that repeat only after 251, so that a shifted copy is seen.
local function pattern(n, seed)
  local bytes = ffi.new("uint8_t[?]", n)
  for i = 0, n - 1 do bytes[i] = (i * 7 + (seed or 0)) % 251 end
  return bytes
end

local function same_bytes(want, got, n)
  for i = 0, n - 1 do
    if want[i] ~= got[i] then error(("byte %d of %d: %d, want %d"):format(i, n, got[i], want[i]), 2) end
  end
end

local function read(ctx, b, n)
  local bytes = ffi.new("uint8_t[?]", n)
  ok(ctx, C.tide_buf_read(b, bytes, n))
  return bytes
end

local function new_stream(ctx, device)
  local out = ffi.new "void *[1]"
  ok(ctx, C.tide_stream_new(ctx, device or 0, out))
  return out[0]
end

local function new_event(ctx)
  local out = ffi.new "tide_event *[1]"
  ok(ctx, C.tide_event_new(ctx, 0, out))
  return ffi.gc(out[0], C.tide_event_close)
end

local function capture(ctx, stream, body)
  local out = ffi.new "tide_graph *[1]"
  ok(ctx, C.tide_graph_begin(ctx, 0, stream))
  body()
  ok(ctx, C.tide_graph_end(ctx, 0, stream, out))
  return ffi.gc(out[0], C.tide_graph_close)
end

local function held_bytes(ctx)
  local lines, n, sum = ffi.new "tide_mem_line[64]", ffi.new "int32_t[1]", 0
  ok(ctx, C.tide_mem_lines(ctx, lines, 64, n))
  for i = 0, n[0] - 1 do sum = sum + tonumber(lines[i].bytes) end
  return sum
end

local function describe_device(ctx, device)
  local info = ffi.new "tide_device_info"
  ok(ctx, C.tide_device_describe(ctx, device or 0, info))
  return info
end

local function probed()
  local list = {}
  local info = ffi.new "tide_device_info"
  while C.tide_device_probe(#list, info) == 0 do
    list[#list + 1] = {name = ffi.string(info.name), why = ffi.string(info.why_absent),
      level = info.capability, processors = info.n_processors, bytes = tonumber(info.total_bytes)}
  end
  return list
end

local function finish()
  for i = #contexts, 1, -1 do close(contexts[i]) end
end

describe("a machine's cuda devices", function()
  after_each(finish)

  it("are absent with the reason that opening one gives, or usable", function()
    local found = 0
    for _, device in ipairs(probed()) do
      if device.name:find("^cuda") then
        found = found + 1
        local ctx, why, status = open(device.name)
        if device.why == "" then
          assert.truthy(ctx, why)
        else
          assert.is_nil(ctx)
          assert.equal(C.TIDE_EDEVICE, status)
          assert.truthy(why:find(device.why, 1, true), why)
        end
      end
    end
    assert.is_true(found > 0)
  end)
end)

describe("a cuda device #gpu", function()
  after_each(finish)

  it("says what it is", function()
    local ctx = need()
    local info = describe_device(ctx)
    local total, free = tonumber(info.total_bytes), tonumber(info.free_bytes)
    assert.equal("cuda:0", ffi.string(info.name))
    assert.is_true(info.capability >= 80 and info.n_processors > 0)
    assert.is_true(free > 0 and free <= total)
    for _, device in ipairs(probed()) do
      if device.name == "cuda:0" then
        assert.equal(info.capability, device.level)
        assert.equal(info.n_processors, device.processors)
        assert.equal(total, device.bytes)
      end
    end
  end)

  it("refuses an ordinal that the machine has not", function()
    need()
    local ctx, why, status = open "cuda:99"
    assert.is_nil(ctx)
    assert.equal(C.TIDE_EDEVICE, status)
    assert.truthy(why:find("no such device (got cuda:99", 1, true), why)
  end)

  it("gives back what was written, at every size around its words", function()
    local ctx = need()
    for _, n in ipairs {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 255, 4095, 4097, 1048579} do
      local a, b, bytes = new_buf(ctx, C.TIDE_U8, {n}), new_buf(ctx, C.TIDE_U8, {n}), pattern(n)
      ok(ctx, C.tide_buf_write(a, bytes, n))
      ok(ctx, C.tide_buf_fill(b, 255, nil))
      ok(ctx, C.tide_buf_copy(b, a, nil))
      same_bytes(bytes, read(ctx, b, n), n)
    end
  end)

  it("copies between any offsets, and writes nothing beside them", function()
    local ctx = need()
    local n, bytes = 300, pattern(300)
    local a = new_buf(ctx, C.TIDE_U8, {n})
    ok(ctx, C.tide_buf_write(a, bytes, n))
    for from = 0, 17 do
      for _, to in ipairs {0, 1, 2, 4, 8, 15, 16} do
        local b = new_buf(ctx, C.TIDE_U8, {n})
        local count = n - 40 - from
        ok(ctx, C.tide_buf_fill(b, 255, nil))
        ok(ctx, C.tide_buf_copy(slice(ctx, b, 0, to, count), slice(ctx, a, 0, from, count), nil))
        local got = read(ctx, b, n)
        for i = 0, n - 1 do
          local want = i >= to and i < to + count and bytes[from + i - to] or 255
          if got[i] ~= want then
            error(("from %d to %d: byte %d is %d, want %d"):format(from, to, i, got[i], want))
          end
        end
      end
    end
  end)

  it("reads and writes strided views, across devices and dtypes", function()
    local ctx = need()
    local host = new_buf(ctx, C.TIDE_F32, {5, 6, 8}, {device = 1})
    local device = new_buf(ctx, C.TIDE_F32, {8, 6, 5})
    local narrow = new_buf(ctx, C.TIDE_BF16, {6, 8, 5})
    local values = ffi.new "float[240]"
    for i = 0, 239 do values[i] = i end
    ok(ctx, C.tide_buf_write(host, values, 960))
    ok(ctx, C.tide_buf_copy(permute(ctx, device, {2, 1, 0}), host, nil))
    ok(ctx, C.tide_buf_copy(permute(ctx, narrow, {2, 0, 1}), host, nil))
    local got, got_narrow = ffi.new "float[240]", ffi.new "uint16_t[240]"
    ok(ctx, C.tide_buf_read(device, got, 960))
    ok(ctx, C.tide_buf_read(narrow, got_narrow, 480))
    local part = new_buf(ctx, C.TIDE_F32, {5, 2, 8}, {device = 1})
    ok(ctx, C.tide_buf_copy(part, slice(ctx, permute(ctx, device, {2, 1, 0}), 1, 3, 2), nil))
    local got_part = ffi.new "float[80]"
    ok(ctx, C.tide_buf_read(part, got_part, 320))
    for i = 0, 4 do
      for j = 0, 5 do
        for k = 0, 7 do
          local value = i * 48 + j * 8 + k
          assert.equal(value, got[k * 30 + j * 5 + i])
          local bits = ffi.new("union { float f; uint32_t u; }", {f = value}).u
          assert.equal(bit.rshift(bits, 16), got_narrow[j * 40 + k * 5 + i])
          if j >= 3 and j < 5 then assert.equal(value, got_part[i * 16 + (j - 3) * 8 + k]) end
        end
      end
    end
  end)

  it("gives freed memory back", function()
    local ctx = need()
    local info = describe_device(ctx)
    local bytes = math.floor(math.min(tonumber(info.free_bytes) / 4, GIB))
    local rounds = math.ceil(tonumber(info.total_bytes) / bytes) + 1
    for _ = 1, rounds do close_buf(new_buf(ctx, C.TIDE_U8, {bytes})) end
    assert.is_true(rounds * bytes > tonumber(info.total_bytes))
  end)

  it("copies through pinned memory on a stream", function()
    local ctx = need()
    local n = 2 ^ 20 + 5
    local pinned = new_buf(ctx, C.TIDE_U8, {n}, {device = 1, pinned = true})
    local back = new_buf(ctx, C.TIDE_U8, {n}, {device = 1, pinned = true})
    local device, stream, bytes = new_buf(ctx, C.TIDE_U8, {n}), new_stream(ctx), pattern(n)
    ffi.copy(view(pinned).data, bytes, n)
    ok(ctx, C.tide_buf_copy(device, pinned, stream))
    ok(ctx, C.tide_buf_copy(back, device, stream))
    ok(ctx, C.tide_sync(ctx, 0, stream))
    assert.equal(0, C.tide_stream_query(ctx, 0, stream))
    same_bytes(bytes, ffi.cast("uint8_t *", view(back).data), n)
    ok(ctx, C.tide_stream_free(ctx, 0, stream))
  end)

  -- The owner of the memory is a buffer that the wrapping closes: the ledger tells when.
  it("wraps a foreign pointer, and lets it go with the last view", function()
    local ctx = need()
    local owner, out = new_buf(ctx, C.TIDE_U8, {4096}), ffi.new "tide_buf *[1]"
    local release = ffi.cast("void (*)(void *)", C.tide_buf_close)
    ok(ctx, C.tide_buf_wrap(ctx, view(owner), release, ffi.gc(owner, nil), out))
    local child = slice(ctx, out[0], 0, 32, 32)
    ok(ctx, C.tide_buf_fill(out[0], 1, nil))
    ok(ctx, C.tide_buf_fill(child, 2, nil))
    local got = read(ctx, owner, 4096)
    assert.same({1, 2, 2, 1}, {got[31], got[32], got[63], got[64]})
    C.tide_buf_close(out[0])
    assert.equal(4096, held_bytes(ctx))
    close_buf(child)
    assert.equal(0, held_bytes(ctx))
  end)

  it("lets one stream wait for an event of another", function()
    local ctx = need()
    local n = 2 ^ 22
    local a, b, c = new_buf(ctx, C.TIDE_U8, {n}), new_buf(ctx, C.TIDE_U8, {n}), new_buf(ctx, C.TIDE_U8, {n})
    local first, second, event = new_stream(ctx), new_stream(ctx), new_event(ctx)
    local before, after = pattern(n, 1), pattern(n, 100)
    for round = 1, 5 do
      local bytes = round % 2 == 0 and before or after
      ok(ctx, C.tide_buf_write(a, bytes, n))
      ok(ctx, C.tide_buf_fill(b, 0, nil))
      ok(ctx, C.tide_sync(ctx, 0, nil))
      for _ = 1, 20 do ok(ctx, C.tide_buf_copy(c, a, first)) end
      ok(ctx, C.tide_buf_copy(b, c, first))
      ok(ctx, C.tide_event_record(event, first))
      ok(ctx, C.tide_stream_wait(event, second))
      ok(ctx, C.tide_buf_copy(c, b, second))
      ok(ctx, C.tide_sync(ctx, 0, second))
      same_bytes(bytes, read(ctx, c, n), n)
    end
    ok(ctx, C.tide_stream_free(ctx, 0, first))
    ok(ctx, C.tide_stream_free(ctx, 0, second))
  end)

  it("measures between events no less than the memory allows, no more than the clock", function()
    local ctx = need()
    local n, us = 2 ^ 26, ffi.new "double[1]"
    local a, b = new_buf(ctx, C.TIDE_U8, {n}), new_buf(ctx, C.TIDE_U8, {n})
    local first, last = new_event(ctx), new_event(ctx)
    ok(ctx, C.tide_buf_fill(a, 3, nil))
    ok(ctx, C.tide_sync(ctx, 0, nil))
    local started = clock.now()
    ok(ctx, C.tide_event_record(first, nil))
    for _ = 1, 4 do ok(ctx, C.tide_buf_copy(b, a, nil)) end
    ok(ctx, C.tide_event_record(last, nil))
    ok(ctx, C.tide_event_elapsed_us(first, last, us))
    local wall = (clock.now() - started) * 1e6
    local least = 4 * 2 * n / 20e12 * 1e6
    assert.is_true(us[0] >= least and us[0] <= wall, ("%g us, want %g .. %g"):format(us[0], least, wall))
  end)

  describe("with a graph", function()
    it("runs nothing while it captures, and the copy at each replay", function()
      local ctx = need()
      local a, b, stream = new_buf(ctx, C.TIDE_U8, {1000}), new_buf(ctx, C.TIDE_U8, {1000}), new_stream(ctx)
      ok(ctx, C.tide_buf_fill(b, 9, nil))
      ok(ctx, C.tide_sync(ctx, 0, nil))
      local graph = capture(ctx, stream, function() ok(ctx, C.tide_buf_copy(b, a, stream)) end)
      assert.equal(9, read(ctx, b, 1000)[0])
      for seed = 1, 3 do
        local bytes = pattern(1000, seed)
        ok(ctx, C.tide_buf_write(a, bytes, 1000))
        ok(ctx, C.tide_graph_replay(graph, stream))
        ok(ctx, C.tide_sync(ctx, 0, stream))
        same_bytes(bytes, read(ctx, b, 1000), 1000)
      end
      ok(ctx, C.tide_stream_free(ctx, 0, stream))
    end)

    it("captures on the context's own stream, kernels that never ran before among them", function()
      local ctx = need()
      local src, dst = new_buf(ctx, C.TIDE_F32, {6, 4}), new_buf(ctx, C.TIDE_F32, {3, 4})
      local ids, cast = new_buf(ctx, C.TIDE_I32, {3}), new_buf(ctx, C.TIDE_F16, {3, 4})
      local values, got = ffi.new "float[24]", ffi.new "float[12]"
      for i = 0, 23 do values[i] = i end
      ok(ctx, C.tide_buf_write(src, values, 96))
      ok(ctx, C.tide_buf_write(ids, ffi.new("int32_t[3]", {4, -1, 1}), 12))
      local graph = capture(ctx, nil, function()
        ok(ctx, C.tide_gather(ctx, view(dst), view(src), view(ids), nil))
        ok(ctx, C.tide_buf_copy(cast, dst, nil))
        ok(ctx, C.tide_buf_copy(dst, cast, nil))
      end)
      ok(ctx, C.tide_graph_replay(graph, nil))
      ok(ctx, C.tide_buf_read(dst, got, 48))
      local list = {}
      for i = 0, 11 do list[i + 1] = got[i] end
      assert.same({16, 17, 18, 19, 0, 0, 0, 0, 4, 5, 6, 7}, list)
    end)

    -- A collector closes buffers when it likes, also between begin and end.
    it("does not mind buffers that come and go while it captures", function()
      local ctx = need()
      local a, b = new_buf(ctx, C.TIDE_U8, {64}), new_buf(ctx, C.TIDE_U8, {64})
      local old = new_buf(ctx, C.TIDE_U8, {64})
      ok(ctx, C.tide_buf_fill(a, 5, nil))
      local graph = capture(ctx, nil, function()
        close_buf(old)
        local fresh = new_buf(ctx, C.TIDE_U8, {1024})
        ok(ctx, C.tide_buf_copy(b, a, nil))
        close_buf(fresh)
      end)
      ok(ctx, C.tide_graph_replay(graph, nil))
      assert.equal(5, read(ctx, b, 64)[63])
    end)

    it("refuses to wait while it captures, and works again after that", function()
      local ctx = need()
      local stream, out = new_stream(ctx), ffi.new "tide_graph *[1]"
      ok(ctx, C.tide_graph_begin(ctx, 0, stream))
      assert.equal(C.TIDE_EDEVICE, C.tide_sync(ctx, 0, stream))
      assert.truthy(ffi.string(C.tide_errmsg(ctx)):find("cuStreamSynchronize", 1, true))
      if C.tide_graph_end(ctx, 0, stream, out) == 0 then C.tide_graph_close(out[0]) end
      local b = new_buf(ctx, C.TIDE_U8, {16})
      ok(ctx, C.tide_buf_fill(b, 7, stream))
      assert.equal(7, read(ctx, b, 16)[15])
      ok(ctx, C.tide_stream_free(ctx, 0, stream))
    end)
  end)

  it("may close before what was made on it, which then only refuses", function()
    local ctx = need()
    local b, event = new_buf(ctx, C.TIDE_U8, {16}), new_event(ctx)
    ok(ctx, C.tide_buf_fill(b, 1, nil))
    local graph = capture(ctx, nil, function() ok(ctx, C.tide_buf_copy(b, b, nil)) end)
    close(ctx)
    assert.equal(C.TIDE_ESTATE, C.tide_buf_read(b, ffi.new "uint8_t[16]", 16))
    assert.equal(C.TIDE_ESTATE, C.tide_event_record(event, nil))
    assert.equal(C.TIDE_ESTATE, C.tide_graph_replay(graph, nil))
    close_buf(b)
    C.tide_event_close(ffi.gc(event, nil))
    C.tide_graph_close(ffi.gc(graph, nil))
  end)

  it("serves two contexts, and the second when the first has closed", function()
    local first, second = need(), need()
    local a, b = new_buf(first, C.TIDE_U8, {16}), new_buf(second, C.TIDE_U8, {16})
    ok(first, C.tide_buf_fill(a, 1, nil))
    ok(second, C.tide_buf_fill(b, 2, nil))
    assert.same({1, 2}, {read(first, a, 16)[15], read(second, b, 16)[15]})
    close(first)
    ok(second, C.tide_buf_fill(b, 3, nil))
    assert.equal(3, read(second, b, 16)[15])
  end)

  it("leaves the caller's current context as it was", function()
    local ctx = need()
    ffi.cdef "int cuCtxGetCurrent(void **out);"
    local driver, current = ffi.load "libcuda.so.1", ffi.new "void *[1]"
    local b = new_buf(ctx, C.TIDE_U8, {16})
    ok(ctx, C.tide_buf_fill(b, 3, nil))
    ok(ctx, C.tide_sync(ctx, 0, nil))
    close_buf(b)
    current[0] = ffi.cast("void *", 1)
    assert.equal(0, driver.cuCtxGetCurrent(current))
    assert.is_true(current[0] == nil)
    assert.not_equal(0, C.tide_buf_copy(nil, nil, nil))
    assert.equal(0, driver.cuCtxGetCurrent(current))
    assert.is_true(current[0] == nil)
  end)

  it("copies to a peer, whole, strided and converted, in the order of both own streams", function()
    local ctx = need()
    local peer = ffi.new "int32_t[1]"
    if C.tide_device_open(ctx, "cuda:1", peer) ~= 0 then helper.skip(ffi.string(C.tide_errmsg(ctx))) end
    local n = 2 ^ 20
    local a, b = new_buf(ctx, C.TIDE_U8, {n / 4, 4}), new_buf(ctx, C.TIDE_U8, {n / 4, 4}, {device = peer[0]})
    local turned = new_buf(ctx, C.TIDE_U8, {4, n / 4}, {device = peer[0]})
    local wide = new_buf(ctx, C.TIDE_I32, {n / 4, 4}, {device = peer[0]})
    for seed = 1, 3 do
      local bytes = pattern(n, seed)
      ok(ctx, C.tide_buf_write(a, bytes, n))
      ok(ctx, C.tide_buf_fill(b, 255, nil))
      ok(ctx, C.tide_buf_copy(b, a, nil))
      ok(ctx, C.tide_buf_copy(permute(ctx, turned, {1, 0}), a, nil))
      ok(ctx, C.tide_buf_copy(wide, a, nil))
      same_bytes(bytes, read(ctx, b, n), n)
      local got, got_wide = read(ctx, turned, n), ffi.cast("int32_t *", read(ctx, wide, 4 * n))
      for i = 0, n / 4 - 1 do
        for j = 0, 3 do
          if got[j * n / 4 + i] ~= bytes[i * 4 + j] or got_wide[i * 4 + j] ~= bytes[i * 4 + j] then
            error(("element %d, %d: %d and %d, want %d"):format(i, j, got[j * n / 4 + i], got_wide[i * 4 + j],
              bytes[i * 4 + j]))
          end
        end
      end
    end
  end)

  it("copies more than 2^31 elements, joined and one by one #slow", function()
    local ctx = need()
    local rows = 2 ^ 30 + 5
    if tonumber(describe_device(ctx).free_bytes) < 5 * GIB then helper.skip "less than 5 GiB free" end
    local a, b = new_buf(ctx, C.TIDE_U8, {rows, 2}), new_buf(ctx, C.TIDE_U8, {2, rows})
    ok(ctx, C.tide_buf_fill(a, 1, nil))
    local ends = {{0, 0, 11}, {1, 1, 22}, {rows - 1, 0, 33}, {rows - 1, 1, 44}, {2 ^ 30, 1, 55}}
    for _, e in ipairs(ends) do
      ok(ctx, C.tide_buf_fill(slice(ctx, slice(ctx, a, 0, e[1], 1), 1, e[2], 1), e[3], nil))
    end
    local function check(at)
      for _, e in ipairs(ends) do assert.equal(e[3], read(ctx, at(e[1], e[2]), 1)[0]) end
      assert.equal(1, read(ctx, at(2 ^ 29, 1), 1)[0])
      assert.equal(1, read(ctx, at(rows - 2, 1), 1)[0])
    end
    ok(ctx, C.tide_buf_fill(b, 7, nil))
    ok(ctx, C.tide_buf_copy(permute(ctx, b, {1, 0}), a, nil))
    check(function(i, j) return slice(ctx, slice(ctx, b, 0, j, 1), 1, i, 1) end)
    local flat = new_buf(ctx, C.TIDE_U8, {rows, 2})
    close_buf(b)
    ok(ctx, C.tide_buf_fill(flat, 7, nil))
    ok(ctx, C.tide_buf_copy(flat, a, nil))
    check(function(i, j) return slice(ctx, slice(ctx, flat, 0, i, 1), 1, j, 1) end)
  end)
end)
