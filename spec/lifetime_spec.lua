-- Who owns what, and in which order it may end: any. Crashes end a process, so the hard cases have one of
-- their own.

local helper = require "spec.helper"
local tide = require "tide"
local context = require "tide.context"

-- Runs a Lua text in a plain luajit; answers what it printed. #fork
local function child(code)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(code)
  file:close()
  local output, status = helper.run(("LUA_PATH='lua/?.lua;lua/?/init.lua' LUA_CPATH='%s' luajit %s"):format(
    package.cpath, path))
  os.remove(path)
  assert.are.equal(0, status, output)
  return output
end

describe("closing", function()
  it("can be repeated", function()
    local ctx = assert(context.open{device = "cpu"})
    local b = ctx:zeros{shape = {3}}
    local p = ctx:predictor{blocks = 4, q_heads = 1, kv_heads = 1, head_dim = 8}
    for _ = 1, 2 do
      b:close()
      p:close()
      ctx:close()
    end
    assert.is_true(ctx:closed())
  end)

  it("makes every later call raise, with what was closed", function()
    local ctx = assert(context.open{device = "cpu"})
    local b, p = ctx:zeros{shape = {3}}, ctx:predictor{blocks = 4, q_heads = 1, kv_heads = 1, head_dim = 8}
    b:close()
    p:close()
    for _, call in ipairs {
      function() return b:read() end, function() return b[0] end, function() return b:slice(0, 0, 1) end,
      function() return b:fill(1) end, function() return b:describe() end, function() return b:to "f16" end,
      function() return ctx:zeros{shape = {3}}:copy(b) end, function() return b:to_dlpack() end,
    } do
      local ok, message = pcall(call)
      assert.is_false(ok)
      assert.is_truthy(message:find("the buffer is closed", 1, true), message)
    end
    local ok, message = pcall(p.forget, p)
    assert.is_false(ok)
    assert.is_truthy(message:find("the predictor is closed", 1, true), message)
    ctx:close()
    ok, message = pcall(ctx.buf, ctx, {shape = {1}})
    assert.is_false(ok)
    assert.is_truthy(message:find("context: closed", 1, true), message)
  end)

  it("of the context first leaves handles that only refuse and close", function()
    local ctx = assert(context.open{device = "cpu"})
    local b = ctx:zeros{shape = {3, 3}}
    local row, p = b[1], ctx:predictor{blocks = 4, q_heads = 1, kv_heads = 1, head_dim = 8}
    ctx:close()
    for _, call in ipairs {function() row:read() end, function() b:slice(0, 0, 1) end,
      function() p:forget() end} do
      local ok, message = pcall(call)
      assert.is_false(ok)
      assert.is_truthy(message:find("context: closed", 1, true), message)
    end
    assert.are.equal("buf f32[3, 3] (context closed)", tostring(b))
    p:close()
    b:close()
    row:close()
  end)

  it("of the default context opens another at the next use", function()
    local first = assert(tide.open{device = "cpu"})
    assert.are.equal(first, tide.context())
    first:close()
    local b = tide.zeros{shape = {2}, device = "cpu"}
    assert.are_not.equal(first, b.ctx)
    b.ctx:close()
  end)

  it("in every order leaves no handle that crashes #fork", function()
    local output = child [[
      local ffi, tide = require "ffi", require "tide"
      local context = require "tide.context"
      math.randomseed(7)
      for round = 1, 300 do
        local ctx = assert(context.open{device = "cpu", threads = 1})
        local b = ctx:zeros{shape = {4, 2, 8}}
        local row = b[1]
        local p = assert(ctx:predictor{blocks = 4, q_heads = 2, kv_heads = 2, head_dim = 8, block_size = 2})
        p:write(b)
        local s = p:score(b[0])
        local t = tide.wrap and ctx:from_dlpack(row:to_dlpack())
        local all = {ctx, b, row, p, s, t}
        for i = #all, 2, -1 do
          local j = math.random(i)
          all[i], all[j] = all[j], all[i]
        end
        for i = 1, math.random(0, #all) do all[i]:close() end
        if round % 50 == 0 then collectgarbage() end
      end
      collectgarbage()
      collectgarbage()
      print "alive"]]
    assert.are.equal("alive", (output:gsub("%s+$", "")))
  end)

  -- At the end of a state finalisers run newest first, whatever points to what: a child may outlive its
  -- parent.
  it("is left to the end of the state without a crash #fork", function()
    local output = child [[
      local tide = require "tide"
      tide.open{device = "cpu"}
      local c = assert(tide.load "spec/data/harbour.safetensors")
      local p = assert(tide.predictor{blocks = 145, q_heads = 9, kv_heads = 3, head_dim = 64})
      p:write(c.k)
      scores = p:score(c.q[511])
      file, row = c, c.k[5]
      print(scores.n)]]
    assert.are.equal("145", (output:gsub("%s+$", "")))
  end)
end)

describe("memory that is refused", function()
  -- 100,000 dropped buffers were not finalised, since the collector sees the small Lua side of each only; at
  -- 1 MiB each
  -- that is 100 GB. Now the ledger's refusal collects, and the allocation is tried once more.
  it("is found again in buffers that Lua has dropped", function()
    local ctx = assert(context.open{device = "cpu", device_limit = "8 MiB"})
    collectgarbage "stop"
    for _ = 1, 100 do assert(ctx:buf{shape = {256, 1024}}) end
    collectgarbage "restart"
    local peak = 0
    for _, line in ipairs(ctx:mem()) do peak = math.max(peak, line.peak_bytes) end
    assert.is_true(peak > 0 and peak <= 8 * 2^20)
    ctx:close()
  end)

  it("is refused once nothing can be collected, and changes nothing", function()
    local ctx = assert(context.open{device = "cpu", device_limit = "1 MiB"})
    local kept = assert(ctx:buf{shape = {200, 1024}, label = "kept"})
    local b, message, code = ctx:buf{shape = {200, 1024}, label = "one more"}
    assert.is_nil(b)
    assert.are.equal("EMEM", code)
    assert.is_truthy(message:find("kept", 1, true), message)
    assert.are.equal(200 * 4096, ctx:mem()[1].bytes)
    kept:close()
    assert.is_truthy(ctx:buf{shape = {200, 1024}, label = "one more"})
    ctx:close()
  end)
end)

describe("a mapped file", function()
  it("lives until the last view over it closes", function()
    local ctx = assert(context.open{device = "cpu"})
    local path = os.tmpname()
    assert(ctx:save(path, {a = ctx:from{{1, 2}, {3, 4}}}))
    local file = assert(ctx:load(path))
    local row = file.a[1]
    file.a:close()
    file:close()
    file:close()
    os.remove(path)
    assert.are.same({3, 4}, row:read():totable())
    row:close()
    assert.has_error(function() return file.a end)
    ctx:close()
  end)
end)
