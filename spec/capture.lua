--- The captures of a real model as the predictor specs use them: the last 64 rows, the true mass, kept
-- shares.
local tide = require "tide"
local helper = require "spec.helper"
local raw = require "spec.raw"
local evaluate = require "tide.evaluate"

local capture = {shares = {0.05, 0.1, 0.2}, n_rows = 64}

--- One capture by name; harbour is part of the project, the others are shared data (nil, reason without it).
function capture.load(name)
  local path, reason = "spec/data/harbour.safetensors", nil
  if name ~= "harbour" then path, reason = helper.shared("captures/" .. name .. ".safetensors") end
  if not path then return nil, reason end
  local file = assert(tide.load(path))
  local c = {name = name, file = file, k = file:get "k", q = file:get "q"}
  c.host = {k = file:get("k", "cpu"), q = file:get("q", "cpu")}
  c.n_tokens, c.first_row = c.k.shape[1], file:number "first_row"
  c.n_blocks = math.floor(c.n_tokens / 16)
  local n = c.q.shape[1]
  c.first_position = c.first_row + n - capture.n_rows
  c.rows = c.q:slice(0, n - capture.n_rows, capture.n_rows)
  c.positions, c.complete = {}, {}
  for i = 1, capture.n_rows do
    c.positions[i] = c.first_position + i - 1
    c.complete[i] = math.min(c.n_blocks, math.floor((c.positions[i] + 1) / 16))
  end
  c.lengths = tide.from(c.complete, "i32")
  return c
end

--- The true share of attention of every block and row, from dense attention.
function capture.mass(c)
  if not c.true_mass then
    c.mass_stride = math.ceil(c.n_tokens / 16)
    local mass = tide.buf{shape = {capture.n_rows, c.mass_stride}}
    local lse = tide.buf{shape = {capture.n_rows, c.q.shape[2]}}
    assert(raw.attend{q = c.rows, k = c.k, mass = mass, lse = lse, first_position = c.first_position})
    c.true_mass = mass:read()
  end
  return c.true_mass, c.mass_stride
end

--- Scores of the 64 rows over the blocks that each may see.
function capture.scores(c, predictor)
  assert(predictor:write(c.k))
  return assert(predictor:score(c.rows, {lengths = c.lengths})):read()
end

--- Kept mass at 5, 10 and 20 %.
function capture.kept(c, scores, stride)
  local mass, mass_stride = capture.mass(c)
  local kept = {}
  for i, share in ipairs(capture.shares) do
    kept[i] = evaluate.kept_mass(scores, mass, c.positions, c.n_blocks, share,
      {mass_stride = mass_stride, score_stride = stride})
  end
  return kept
end

--- Rank of the needle's best block at the answer row.
function capture.needle_rank(c, predictor)
  local position = c.file:number "answer_row"
  local row = assert(predictor:score(c.q[position - c.first_row],
    {n = math.min(c.n_blocks, math.floor((position + 1) / 16))})):read()
  return evaluate.needle_rank(row, position, c.n_blocks, c.file:number "needle_first",
    c.file:number "needle_last")
end

--- The reference table: [capture][predictor] = {kept_5, kept_10, kept_20, needle_rank as text}.
function capture.reference()
  local path, reason = helper.shared "captures/reference.tsv"
  if not path then return nil, reason end
  local rows = {}
  for line in helper.read(path):gmatch "[^\n]+" do
    local name, predictor, a, b, c,
      rank = line:match "^(%w[%w_]*)\t([^\t]+)\t([%d.]+)\t([%d.]+)\t([%d.]+)\t(.+)$"
    if name then
      rows[name] = rows[name] or {}
      rows[name][predictor] = {tonumber(a), tonumber(b), tonumber(c), rank}
    end
  end
  return rows
end

return capture
