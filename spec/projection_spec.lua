-- The random projection: bit-exact for a seed, because stored vectors and queries of two machines must agree.
local ffi = require "ffi"
local lib = require("tide.cdef").lib
local raw = require "spec.raw"

local function project(head_dim, rank, seed)
  local out = ffi.new("uint16_t[?]", head_dim * rank)
  assert.are.equal(0, lib.tide_random_projection(head_dim, rank, seed or 0, out))
  return out
end

local function float(bits)
  return ffi.cast("float *", ffi.new("uint32_t[1]", bit.lshift(bits, 16)))[0]
end

describe("the random projection", function()
  it("gives the published bits for head_dim 128, rank 32, seed 0xCAFEF00D", function()
    local p, first = project(128, 32, 0xCAFEF00D), {}
    for i = 1, 8 do first[i] = p[i - 1] end
    assert.are.same({48010, 48438, 15723, 15775, 48398, 48642, 48035, 48715}, first)
    assert.are.equal("549869485a9b0c37", raw.fnv(p, 4096))
  end)

  it("takes seed 0 for 0xCAFEF00D", function()
    assert.are.equal(ffi.string(project(128, 32, 0xCAFEF00D), 8192), ffi.string(project(128, 32), 8192))
  end)

  it("reads all 64 bits of a seed", function()
    local low = ffi.string(project(16, 4, 1), 128)
    assert.are_not.equal(low, ffi.string(project(16, 4, 0x100000001ULL), 128))
    assert.are.equal(low, ffi.string(project(16, 4, 1), 128))
  end)

  it("is one stream: the variates of a smaller map are the first of a larger one", function()
    local small, large = project(64, 1), project(64, 128)
    for i = 0, 63 do assert.are.equal(small[i], large[i]) end
  end)

  -- 64 maps of 32768 variates reach beyond the ziggurat's base layer, into its tail, about 540 times.
  it("is normal with variance 1/head_dim, tails included", function()
    local n, sum, square, fourth, beyond = 0, 0, 0, 0, 0
    for seed = 1, 64 do
      local p = project(256, 128, seed)
      for i = 0, 256 * 128 - 1 do
        local z = float(p[i]) * 16
        n, sum, square, fourth = n + 1, sum + z, square + z * z, fourth + z * z * z * z
        if math.abs(z) > 3.6542 then beyond = beyond + 1 end
      end
    end
    -- Five standard errors of each moment; rounding to bf16 adds a relative 2^-18 to the variance at most.
    local root = math.sqrt(n)
    assert.is_true(math.abs(sum / n) < 5 / root)
    assert.is_true(math.abs(square / n - 1) < 5 * math.sqrt(2) / root + 1e-5)
    assert.is_true(math.abs(fourth / n - 3) < 5 * math.sqrt(96) / root + 1e-4)
    local expected = n * 2.58e-4
    assert.is_true(math.abs(beyond - expected) < 5 * math.sqrt(expected) + 0.02 * expected, tostring(beyond))
  end)

  it("keeps products: E[(qP).(kP)] = (rank / head_dim) q.k", function()
    local dim, rank, n_seeds = 64, 32, 200
    local q, k, dot, qq, kk = raw.normal(dim, 1), raw.normal(dim, 2), 0, 0, 0
    for d = 1, dim do
      k[d] = k[d] + q[d]
      dot, qq, kk = dot + q[d] * k[d], qq + q[d] * q[d], kk + k[d] * k[d]
    end
    local total = 0
    for seed = 1, n_seeds do
      local p = project(dim, rank, seed)
      for j = 0, rank - 1 do
        local a, b = 0, 0
        for d = 0, dim - 1 do
          local x = float(p[d * rank + j])
          a, b = a + q[d + 1] * x, b + k[d + 1] * x
        end
        total = total + a * b
      end
    end
    local deviation = math.sqrt(rank / dim ^ 2 * (qq * kk + dot * dot) / n_seeds)
    assert.is_true(math.abs(total / n_seeds - rank / dim * dot) < 5 * deviation)
  end)

  it("refuses what is out of range and leaves the output alone", function()
    local out = ffi.new("uint16_t[1]", 7)
    for _, case in ipairs {{0, 1}, {257, 1}, {1, 0}, {1, 129}, {-1, 1}} do
      assert.are.equal(lib.TIDE_EINVAL, lib.tide_random_projection(case[1], case[2], 0, out))
    end
    assert.are.equal(lib.TIDE_EINVAL, lib.tide_random_projection(1, 1, 0, nil))
    assert.are.equal(7, out[0])
  end)
end)
