-- The rule by which rankings are judged, on blocks of 16 that can be counted by hand.
local evaluate = require "tide.evaluate"

-- A list that counts from 0.
local function from0(list)
  local t = {}
  for i, x in ipairs(list) do t[i - 1] = x end
  return t
end

local function constant(n, x)
  local t = {}
  for i = 0, n - 1 do t[i] = x end
  return t
end

describe("evaluate", function()
  it("always keeps block 0 and the last five, and six blocks at least", function()
    assert.are.same({0, 3, 8, 9, 10, 11}, evaluate.choose(from0 {0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0},
      12 * 16 - 1, 12, 0.1))
  end)

  it("counts the block of the next token among the last, where it exists", function()
    assert.are.same({0, 1, 4, 5, 6, 7, 8}, evaluate.choose(constant(40, 1), 8 * 16 - 1, 40, 0.175))
    assert.are.same({0, 1, 4, 5, 6, 7, 8}, evaluate.choose(constant(40, 1), 8 * 16 + 14, 40, 0.175))
    assert.are.same({0, 1, 5, 6, 7, 8, 9}, evaluate.choose(constant(40, 1), 8 * 16 + 15, 40, 0.175))
  end)

  it("chooses by score among earlier blocks only, ties to the lower id, NaN last", function()
    local nan = 0 / 0
    local scores = from0 {0, nan, 2, 1, 2, 1, nan, -math.huge, 0, 0, 0, 0, 0, 99, 99}
    local function chosen(share) return evaluate.choose(scores, 12 * 16 - 1, 15, share) end
    assert.are.same({0, 2, 8, 9, 10, 11, 12}, chosen(7 / 15 + 1e-9))
    assert.are.same({0, 2, 3, 4, 8, 9, 10, 11, 12}, chosen(9 / 15 + 1e-9))
    assert.are.same({0, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12}, chosen(11 / 15 + 1e-9))
    assert.are.same({0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12}, chosen(12 / 15 + 1e-9))
  end)

  it("sums the true mass of what stays, mean over rows, strides included", function()
    local scores, mass = constant(40, 0), constant(44, 0)
    scores[20 + 3] = 1
    for row = 0, 1 do
      mass[row * 22 + 0], mass[row * 22 + 3], mass[row * 22 + 21] = 0.5, 0.25, 0.1
    end
    local positions = {20 * 16 - 1, 20 * 16 - 1}
    local kept = evaluate.kept_mass(scores, mass, positions, 20, 0.3, {mass_stride = 22})
    assert.are.equal((0.5 + 0.75) / 2, kept)
  end)

  it("ranks a needle by its best block among those that are not always in", function()
    local scores = from0 {9, 4, 8, 1, 5, 7, 0, 0, 0, 9, 9, 9, 9, 9}
    assert.are.equal(2, evaluate.needle_rank(scores, 12 * 16 - 1, 14, 4 * 16 + 3, 4 * 16 + 9))
    assert.are.equal(1, evaluate.needle_rank(scores, 12 * 16 - 1, 14, 4 * 16 + 3, 5 * 16))
    assert.are.equal(0, evaluate.needle_rank(scores, 12 * 16 - 1, 14, 2 * 16, 2 * 16 + 1))
    assert.are.equal(0, evaluate.needle_rank(from0 {7, 0, 0, 1}, 2 * 2 - 1, 2, 2, 3, {block_size = 2,
      offset = 1}))
  end)
end)
