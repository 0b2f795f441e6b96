--- How good a ranking of blocks is: attention mass kept under a budget, and the rank of a known answer.
--
-- The rule: n = max(6, floor(share * n_blocks)) blocks may stay. Block 0 and blocks e-4 .. e are always in,
-- where e = floor((position + 1) / block_size) is the block that the next token falls into; only blocks
-- 0 .. n_blocks-1 exist. The rest are the best of the blocks below e, ties to the lower id, NaN last.
--
-- Scores and masses are anything indexed from 0 in row-major order: what `buf:read()` gives, an FFI pointer,
-- a table. `layout` may hold block_size (16), score_stride and mass_stride (n_blocks): elements a row.
-- @module tide.evaluate

local evaluate = {}

local none = {}

-- Whether a block of this score and id goes before another.
local function before(score, id, other_score, other_id)
  if score ~= score then return other_score ~= other_score and id < other_id end
  if other_score ~= other_score or score > other_score then return true end
  return score == other_score and id < other_id
end

-- A set of the blocks that are always in, and their number.
local function always_in(e, n_blocks)
  local set, n = {}, 0
  local function add(block)
    if block >= 0 and block < n_blocks and not set[block] then set[block], n = true, n + 1 end
  end
  add(0)
  for block = e - 4, e do add(block) end
  return set, n
end

--- The blocks that stay for one row.
-- @param scores of the row's blocks, from 0
-- @tparam number position of the row's token
-- @tparam number n_blocks whole blocks of the sequence
-- @tparam number share of them that may stay, 0 to 1
-- @tparam ?table layout block_size; offset: where the row starts in scores
-- @treturn table ids in ascending order
-- @usage local kept = evaluate.choose(s:read(), 2325, 145, 0.2)
function evaluate.choose(scores, position, n_blocks, share, layout)
  layout = layout or none
  local at = layout.offset or 0
  local e = math.floor((position + 1) / (layout.block_size or 16))
  local kept, n_kept = always_in(e, n_blocks)
  local others = {}
  for block = 0, math.min(e, n_blocks) - 1 do
    if not kept[block] then others[#others + 1] = block end
  end
  table.sort(others, function(a, b) return before(scores[at + a], a, scores[at + b], b) end)
  local wanted = math.max(6, math.floor(share * n_blocks)) - n_kept
  for i = 1, math.min(wanted, #others) do kept[others[i]] = true end
  local ids = {}
  for block = 0, n_blocks - 1 do
    if kept[block] then ids[#ids + 1] = block end
  end
  return ids
end

--- Share of the true attention mass in the blocks that a ranking keeps, mean over rows.
-- @param scores [rows, n_blocks] from 0
-- @param mass true share of attention by block, likewise; what lies outside the blocks counts as lost
-- @tparam table positions a list, the position of each row's token
-- @tparam number n_blocks whole blocks of the sequence
-- @tparam number share of the blocks that may stay, 0 to 1
-- @tparam ?table layout block_size, score_stride, mass_stride
-- @treturn number 0 to 1
-- @usage evaluate.kept_mass(s:read(), m:read(), positions, 145, 0.1, {mass_stride = 146})
function evaluate.kept_mass(scores, mass, positions, n_blocks, share, layout)
  layout = layout or none
  local score_stride, mass_stride = layout.score_stride or n_blocks, layout.mass_stride or n_blocks
  local total = 0
  for row, position in ipairs(positions) do
    local kept = evaluate.choose(scores, position, n_blocks, share,
      {offset = (row - 1) * score_stride, block_size = layout.block_size})
    for _, block in ipairs(kept) do total = total + mass[(row - 1) * mass_stride + block] end
  end
  return total / #positions
end

--- Cosine of two results, row by row.
-- @param a [rows, width] from 0
-- @param b likewise
-- @tparam number rows
-- @tparam number width
-- @treturn {number,...} one a row; 1 where both rows are zero
-- @usage evaluate.cosines(kept:read(), dense:read(), 64, 9 * 64)
function evaluate.cosines(a, b, rows, width)
  local cosines = {}
  for row = 1, rows do
    local ab, aa, bb = 0, 0, 0
    for i = (row - 1) * width, row * width - 1 do
      ab, aa, bb = ab + a[i] * b[i], aa + a[i] * a[i], bb + b[i] * b[i]
    end
    cosines[row] = aa == bb and aa == 0 and 1 or ab / math.sqrt(aa * bb)
  end
  return cosines
end

--- How many blocks score above the best block of a needle, blocks that are always in left aside: 0 is first.
-- @param scores of the row's blocks, from 0
-- @tparam number position of the row's token
-- @tparam number n_blocks whole blocks of the sequence
-- @tparam number first token of the needle
-- @tparam number last token of the needle
-- @tparam ?table layout block_size; offset: where the row starts in scores
-- @treturn number rank, from 0
-- @usage evaluate.needle_rank(s:read(), row, 145, c:number "needle_first", c:number "needle_last")
function evaluate.needle_rank(scores, position, n_blocks, first, last, layout)
  layout = layout or none
  local at, size = layout.offset or 0, layout.block_size or 16
  local e = math.floor((position + 1) / size)
  local best = -math.huge
  for block = math.floor(first / size), math.floor(last / size) do
    local score = scores[at + block]
    if score > best then best = score end
  end
  local always, rank = always_in(e, n_blocks), 0
  for block = 0, math.min(e, n_blocks) - 1 do
    if not always[block] and scores[at + block] > best then rank = rank + 1 end
  end
  return rank
end

return evaluate
