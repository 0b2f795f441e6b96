-- Attention over blocks and gathering of rows, against plain Lua.
local tide = require "tide"
local raw = require "spec.raw"
local lib = raw.lib

local n_rows, q_heads, kv_heads, dim, size, n_tokens = 3, 6, 2, 8, 4, 19
local n_blocks = math.ceil(n_tokens / size)

local function values(b) return b:read():totable() end

-- Rows of plain attention over the tokens that allowed(row, token) admits: out, lse, mass by block.
local function plain(q, k, v, allowed, scale)
  local out, lse, mass = {}, {}, {}
  for row = 1, #q do
    out[row], lse[row], mass[row] = {}, {}, {}
    for block = 1, n_blocks do mass[row][block] = 0 end
    for h = 1, #q[row] do
      local kv, weights, sum = math.floor((h - 1) / (#q[row] / #k[1])) + 1, {}, 0
      for t = 1, #k do
        local s = 0
        for d = 1, dim do s = s + q[row][h][d] * k[t][kv][d] end
        weights[t] = allowed(row - 1, t - 1) and math.exp(s * scale) or 0
        sum = sum + weights[t]
      end
      out[row][h], lse[row][h] = {}, math.log(sum)
      for d = 1, dim do
        local x = 0
        for t = 1, #k do x = x + weights[t] / sum * v[t][kv][d] end
        out[row][h][d] = x
      end
      for t = 1, #k do
        local block = math.floor((t - 1) / size) + 1
        mass[row][block] = mass[row][block] + weights[t] / sum / #q[row]
      end
    end
  end
  return out, lse, mass
end

local function assert_close(want, got, tolerance)
  assert.are.equal(#want, #got)
  for i = 1, #want do
    if type(want[i]) == "table" then assert_close(want[i], got[i], tolerance)
    else assert.is_near(want[i], got[i], tolerance) end
  end
end

local function operands()
  return raw.noise({n_rows, q_heads, dim}, 1), raw.noise({n_tokens, kv_heads, dim}, 2),
    raw.noise({n_tokens, kv_heads, dim}, 3)
end

local function outputs(blocks)
  return tide.buf{shape = {n_rows, q_heads, dim}}, tide.buf{shape = {n_rows, q_heads}},
    tide.buf{shape = {n_rows, blocks or n_blocks}}
end

-- Runs with out, lse and mass, and compares all three.
local function check(fields, allowed, tolerance, like, scale)
  local out, lse, mass = outputs()
  fields.out, fields.lse, fields.mass, fields.block_size = out, lse, mass, size
  assert(raw.attend(fields))
  local want_out, want_lse, want_mass = plain(values(like.q), values(like.k), values(like.v), allowed,
    scale or 1 / math.sqrt(dim))
  assert_close(want_out, values(out), tolerance)
  assert_close(want_lse, values(lse), tolerance)
  assert_close(want_mass, values(mass), tolerance)
end

describe("attend", function()
  setup(function() raw.open() end)

  it("is softmax attention over the tokens up to each row's position", function()
    local q, k, v = operands()
    local like = {q = q, k = k, v = v}
    check({q = q, k = k, v = v, first_position = 7}, function(row, t) return t <= 7 + row end, 1e-5, like)
    local positions = {18, 0, 9}
    check({q = q, k = k, v = v, positions = tide.from(positions, "i32")},
      function(row, t) return t <= positions[row + 1] end, 1e-5, like)
    check({q = q, k = k, v = v, first_position = 1000, softmax_scale = 0.7}, function() return true end,
      1e-5, like, 0.7)
  end)

  it("reads f16 and bf16, strides and heads that lie first", function()
    local q, k, v = operands()
    for _, dtype in ipairs {"f16", "bf16"} do
      local like = {q = q:to(dtype), k = k:to(dtype), v = v:to(dtype)}
      check({q = like.q, k = like.k, v = like.v, first_position = 16}, function(row,
        t) return t <= 16 + row end, 1e-4, like)
    end
    local turned = tide.buf{shape = {kv_heads, n_tokens, dim}}:permute{1, 0, 2}
    turned:copy(k)
    check({q = q, k = turned, v = v, first_position = 16}, function(row, t) return t <= 16 + row end, 1e-5,
      {q = q, k = k, v = v})
  end)

  it("reads fp8 with the factors that it was stored with", function()
    local q, k, v = operands()
    local k8, v8 = k:to("f8e4m3"), v:to("f8e4m3")
    local like = {q = q, k = k8:to("f32"), v = v8:to("f32")}
    local out, plain_out = tide.buf{shape = {n_rows, q_heads, dim}}, tide.buf{shape = {n_rows, q_heads, dim}}
    assert(raw.attend{q = q, k = k8, v = v8, out = out, first_position = 18, k_scale = 2, v_scale = 0.5})
    assert(raw.attend{q = q, k = like.k, v = like.v, out = plain_out, first_position = 18,
      softmax_scale = 2 / math.sqrt(dim)})
    local want, got = plain_out:read(), out:read()
    for i = 0, got.n - 1 do assert.is_near(0.5 * want[i], got[i], 1e-4) end
  end)

  it("finds blocks of a paged pool through one table, or one for each row", function()
    local q, k, v = operands()
    local order = {6, 1, 4, 0, 3}
    local k_pool, v_pool = tide.buf{shape = {7, size, kv_heads, dim}}:fill(1e9), tide.buf{shape = {7, size,
      kv_heads, dim}}
    v_pool:fill(1e9)
    for j = 0, n_blocks - 1 do
      local n = math.min(size, n_tokens - j * size)
      k_pool[order[j + 1]]:slice(0, 0, n):copy(k:slice(0, j * size, n))
      v_pool[order[j + 1]]:slice(0, 0, n):copy(v:slice(0, j * size, n))
    end
    local like = {q = q, k = k, v = v}
    local function allowed(row, t) return t <= 16 + row end
    check({q = q, k = k_pool, v = v_pool, table = tide.from(order, "i32"), first_position = 16}, allowed,
      1e-5, like)
    check({q = q, k = k_pool, v = v_pool, table = tide.from({order, order, order}, "i32"),
      first_position = 16},
      allowed, 1e-5, like)
  end)

  it("reads the listed blocks only, one list or one for each row, -1 padded", function()
    local q, k, v = operands()
    local like = {q = q, k = k, v = v}
    local lists = {{4, 0, -1}, {1, 2, 3}, {-1, -1, 4}}
    local function listed(list, t)
      for _, block in ipairs(list) do
        if block == math.floor(t / size) then return true end
      end
      return false
    end
    check({q = q, k = k, v = v, first_position = 16, blocks = tide.from(lists, "i32")},
      function(row, t) return t <= 16 + row and listed(lists[row + 1], t) end, 1e-5, like)
    check({q = q, k = k, v = v, first_position = 16, blocks = tide.from({3, 0}, "i32")},
      function(row, t) return t <= 16 + row and listed({3, 0}, t) end, 1e-5, like)
  end)

  it("gives zeros and -infinity for a row that reads nothing", function()
    local q, k, v = operands()
    local out, lse, mass = outputs()
    assert(raw.attend{q = q, k = k, v = v, out = out, lse = lse, mass = mass, block_size = size,
      first_position = -5})
    assert.are.equal(n_rows * q_heads * dim, out:describe().n_zero)
    assert.are.equal(n_rows * n_blocks, mass:describe().n_zero)
    for _, row in ipairs(values(lse)) do
      for _, x in ipairs(row) do assert.are.equal(-math.huge, x) end
    end
    assert(raw.attend{q = tide.buf{shape = {0, q_heads, dim}}, k = k, v = v, out = tide.buf{shape = {0,
      q_heads, dim}}})
  end)

  it("gives the mass without any v", function()
    local q, k = operands()
    local _, lse, mass = outputs()
    assert(raw.attend{q = q, k = k, lse = lse, mass = mass, block_size = size, first_position = 16})
    for _, row in ipairs(values(mass)) do
      local sum = 0
      for _, x in ipairs(row) do sum = sum + x end
      assert.is_near(1, sum, 1e-5)
    end
  end)

  it("refuses what does not fit, with both values", function()
    local q, k, v = operands()
    local out, lse, mass = outputs()
    local function refused(code, pattern, fields)
      local ok, message, got = raw.attend(fields)
      assert.is_nil(ok)
      assert.are.equal(code, got)
      assert.matches(pattern, message)
    end
    local function with(fields)
      local all = {q = q, k = k, v = v, out = out, lse = lse, mass = mass, block_size = size,
        first_position = 3}
      for name, value in pairs(fields) do all[name] = value end
      return all
    end
    refused("ESHAPE", "attend: q: .*got 0 dimensions", {})
    refused("ESHAPE", "attend: k: .*got f32%[19, 2, 9%], want %[n, n, 8%].*head_dim",
      with {k = tide.buf{shape = {n_tokens, kv_heads, 9}}})
    refused("ESHAPE", "v differs from k .*got f32%[18, 2, 8%], want f32%[19, 2, 8%]", with {v = v:slice(0, 0,
      18)})
    refused("ESHAPE", "v differs from k .*got f16", with {v = v:to("f16")})
    refused("EDTYPE", "attend: q: .*got i32", with {q = tide.buf{dtype = "i32", shape = {n_rows, q_heads,
      dim}}})
    refused("ESHAPE", "table needs a paged k .*got 3 dimensions", with {table = tide.from({0}, "i32")})
    refused("ESHAPE", "attend: k: .*want %[n, 4, n, 8%]", with {k = tide.buf{shape = {3, 5, kv_heads, dim}}})
    refused("ESHAPE", "attend: out: .*got f32%[3, 6%], want %[3, 6, 8%]", with {out = lse})
    refused("ESHAPE", "attend: mass: .*got f32%[3, 4%], want %[3, 5%]", with {mass = tide.buf{shape = {3,
      4}}})
    refused("ESHAPE", "attend: positions: .*got i32%[2%], want %[3%]", with {positions = tide.from({1, 2},
      "i32")})
    refused("ESHAPE", "attend: blocks: .*got i32%[2, 2%], want %[3, n%]", with {blocks = tide.from({{1, 2},
      {1, 2}}, "i32")})
    refused("EINVAL", "mass needs lse", {q = q, k = k, v = v, mass = mass, block_size = size})
    refused("EINVAL", "softmax_scale must be finite .*nan", with {softmax_scale = 0 / 0})
    refused("EINVAL", "block_size must be 1 or more .*got %-1", with {block_size = -1})
    refused("EINVAL", "n_q_heads must be a multiple of n_kv_heads .*got 6 and 4",
      {q = q, k = tide.buf{shape = {4, 4, dim}}, v = tide.buf{shape = {4, 4, dim}}, out = out})
    assert.are.equal(lib.TIDE_EINVAL, lib.tide_attend(tide.context():handle(), nil, nil))
  end)
end)

describe("gather", function()
  setup(function() raw.open() end)

  local function gather(dst, src, ids)
    return raw.outcome(lib.tide_gather(tide.context():handle(), dst._view, src._view, ids._view, nil))
  end

  it("takes rows by id; an id out of range gives zeros", function()
    for _, dtype in ipairs {"f32", "bf16", "i64", "u8"} do
      local src = tide.from({{1, 2}, {3, 4}, {5, 6}}, dtype)
      local dst = tide.buf{dtype = dtype, shape = {6, 2}}
      assert(gather(dst, src, tide.from({2, 0, 3, -1, 1, 2 ^ 31 - 1}, "i32")))
      assert.are.same({{5, 6}, {1, 2}, {0, 0}, {0, 0}, {3, 4}, {0, 0}}, values(dst))
    end
  end)

  it("takes rows of any shape and any distance", function()
    local src = tide.from({{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}, "f32"):slice(1, 1, 2)
    local wide = tide.zeros{shape = {2, 3}}
    assert(gather(wide:slice(1, 0, 2), src, tide.from({2, 1}, "i32")))
    assert.are.same({{8, 9, 0}, {5, 6, 0}}, values(wide))
    local line = tide.buf{shape = {2}}
    assert(gather(line, tide.from({7, 8, 9}, "f32"), tide.from({2, 0}, "i32")))
    assert.are.same({9, 7}, values(line))
  end)

  it("refuses other shapes and dtypes", function()
    local src, ids = tide.buf{shape = {3, 2}}, tide.from({0, 1}, "i32")
    local function refused(code, pattern, ok, message, got)
      assert.is_nil(ok)
      assert.are.equal(code, got)
      assert.matches(pattern, message)
    end
    refused("ESHAPE", "gather: dst: .*got f32%[3, 2%], want %[2, 2%]", gather(tide.buf{shape = {3, 2}}, src,
      ids))
    refused("EDTYPE", "gather: dst: .*got f16, want f32", gather(tide.buf{dtype = "f16", shape = {2, 2}},
      src, ids))
    refused("EDTYPE", "gather: ids: .*got f32, want i32", gather(tide.buf{shape = {2, 2}}, src,
      tide.buf{shape = {2}}))
    refused("ESHAPE", "gather: src: dimension 1 is not contiguous",
      gather(tide.buf{shape = {2, 2}}, tide.buf{shape = {2, 3}}:permute{1, 0}, ids))
    refused("ESHAPE", "src has no rows", gather(tide.buf{shape = {}}, tide.buf{shape = {}}, ids))
    refused("EINVAL", "gather: dst: required",
      raw.outcome(lib.tide_gather(tide.context():handle(), nil, src._view, ids._view, nil)))
  end)
end)

