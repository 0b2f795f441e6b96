--- Every predictor on one capture: kept attention mass, rank of the answer's block, bytes, time.
-- The list of predictors stands here once; the demo and `tide predictor compare` print it.
-- @module tide.compare

local tide = require "tide"
local clock = require "tide.clock"
local evaluate = require "tide.evaluate"
local plot = require "tide.plot"

local compare = {}

compare.shares = {0.05, 0.10, 0.20}
compare.seeds = {0xCAFEF00D, 0xCAFEF00E, 0xCAFEF00F, 0xCAFEF010, 0xCAFEF011}

local function random(mark, aggregate, rank)
  return {
    id = ("random-%d-%s"):format(rank, aggregate), mark = mark,
    name = ("random, r %d, %s"):format(rank, aggregate),
    summary = "tokens", aggregate = aggregate, rank = rank, seeds = true,
  }
end

local function calibrated(mark, name, calibrate)
  return {
    id = ("%s-%d-mass"):format(name, calibrate.rank), mark = mark,
    name = ("%s, r %d, mass"):format(name, calibrate.rank),
    summary = "tokens", aggregate = "mass", calibrate = calibrate,
  }
end

-- id: in JSON; mark: in plots. seeds: measured once a seed. calibrate: settings of the calibration it needs.
compare.list = {
  {id = "oracle", mark = "T", name = "true mass (the ceiling)", scores = "mass"},
  {id = "keys-max", mark = "K", name = "all keys, max", summary = "tokens", aggregate = "max"},
  {id = "recent", mark = "0", name = "sink and recent only", scores = "recency", bytes = 0},
  random("r", "max", 32),
  random("r", "max", 16),
  random("R", "mass", 32),
  random("R", "mass", 16),
  calibrated("C", "calibrated", {rank = 32}),
  calibrated("C", "calibrated", {rank = 16}),
  calibrated("C", "calibrated", {rank = 8}),
  calibrated("A", "query-aware", {rank = 16, centred = true, query_aware = true}),
  {id = "minmax-max", mark = "q", name = "min/max (Quest), max", summary = "minmax", aggregate = "max"},
  {id = "minmax-mass", mark = "Q", name = "min/max (Quest), mass", summary = "minmax", aggregate = "mass"},
  {id = "mean-mass", mark = "M", name = "mean key, mass", summary = "mean", aggregate = "mass"},
}

-- Lists read faster than host arrays, and evaluation reads a lot.
local function flat(array)
  local values = {}
  for i = 0, array.n - 1 do values[i] = array[i] end
  return values
end

-- True attention of some rows.
local function attend(c, q, first_position)
  return assert(tide.attend {
    q = q, k = c.k, v = c.v, first_position = first_position, block_size = c.block_size, mass = true,
  })
end

--- An entry of the list.
-- @tparam string id
-- @treturn table
function compare.entry(id)
  for _, entry in ipairs(compare.list) do
    if entry.id == id then return entry end
  end
  error(("compare: no predictor '%s' in the list"):format(id), 2)
end

--- The last rows of a capture with the true mass of every block: what rankings are held against.
-- @tparam capture c
-- @tparam[opt=64] number rows at most so many
-- @treturn table
-- @usage local case = compare.case(assert(require("tide.capture").open(path)))
function compare.case(c, rows)
  local q, first = c:last_rows(rows or 64)
  local case = {capture = c, q = q, rows = q.shape[1], first_row = first, positions = {}}
  case.first_position = c.first_row + first
  local mass = assert(attend(c, q, case.first_position).mass:read())
  case.mass, case.mass_stride = flat(mass), mass.shape[2]
  local lengths = {}
  for row = 1, case.rows do
    case.positions[row] = case.first_position + row - 1
    lengths[row] = compare.blocks_before(c, case.positions[row])
  end
  case.lengths = assert(tide.from(lengths, "i32"))
  return case
end

--- How many blocks end at or before a position.
-- @tparam capture c
-- @tparam number position of a row
-- @treturn number
function compare.blocks_before(c, position)
  return math.min(c.n_blocks, math.floor((position + 1) / c.block_size))
end

--- Settings of an entry's predictor on a capture.
-- @tparam capture c
-- @tparam table entry of compare.list
-- @param how a seed, a calibration, or nil
-- @treturn table for tide.predictor
function compare.settings(c, entry, how)
  local projection = "identity"
  if entry.seeds then projection = {random = how, rank = entry.rank} end
  if entry.calibrate then projection = {calibrated = how} end
  return {
    blocks = c.n_blocks, block_size = c.block_size,
    q_heads = c.q_heads, kv_heads = c.kv_heads, head_dim = c.head_dim,
    summary = entry.summary, aggregate = entry.aggregate, projection = projection,
    max_rows = 64, label = entry.id,
  }
end

-- scores and needle_scores count from 0; one row of scores after the other, stride apart.
local function evaluated(case, scores, stride, needle_scores)
  local c, found = case.capture, {kept = {}}
  local layout = {block_size = c.block_size, score_stride = stride, mass_stride = case.mass_stride}
  for i, share in ipairs(compare.shares) do
    found.kept[i] = evaluate.kept_mass(scores, case.mass, case.positions, c.n_blocks, share, layout)
  end
  if needle_scores then
    found.needle_rank = evaluate.needle_rank(needle_scores, c.needle.position, c.n_blocks,
      c.needle.first_token, c.needle.last_token, layout)
  end
  return found
end

-- Microseconds of one query over all blocks, until the scores can be read.
local function time_query(p, q, n)
  local best = math.huge
  local out = assert(p:score(q, {n = n}))
  local began, n_calls = clock.now(), 0
  repeat
    local started = clock.now()
    assert(p:score(q, {n = n, out = out}))
    assert(p.ctx:sync())
    best = math.min(best, clock.now() - started)
    n_calls = n_calls + 1
  until n_calls == 8 or clock.now() - began > 0.02
  out:close()
  return best * 1e6
end

-- Blocks that do not end before the row score -infinity.
local function needle_scores(c, p)
  if not c.needle then return nil end
  local lengths = assert(tide.from({compare.blocks_before(c, c.needle.position)}, "i32"))
  local scores = assert(p:score(c.q:slice(0, c.needle.row, 1), {n = c.n_blocks, lengths = lengths}))
  return flat(assert(scores:read()))
end

local function measure_predictor(case, entry, how)
  local p = assert(tide.predictor(compare.settings(case.capture, entry, how)))
  assert(p:write(case.capture.k))
  local c = case.capture
  local scores = assert(p:score(case.q, {n = c.n_blocks, lengths = case.lengths}))
  local found = evaluated(case, flat(assert(scores:read())), c.n_blocks, needle_scores(c, p))
  found.bytes_per_token = p:sizes().bytes_per_token
  found.us = time_query(p, case.q[case.rows - 1], c.n_blocks)
  scores:close()
  p:close()
  return found
end

-- Rankings that no summary is needed for, as arrays.
local ready = {}

function ready.mass(case)
  local c, needle = case.capture, nil
  if c.needle then
    needle = flat(assert(attend(c, c.q:slice(0, c.needle.row, 1), c.needle.position).mass:read()))
  end
  return case.mass, case.mass_stride, needle
end

function ready.recency(case)
  local ids = {}
  for block = 0, case.capture.n_blocks - 1 do ids[block] = block end
  return ids, 0, case.capture.needle and ids
end

local function mean(list, of)
  local sum = 0
  for _, item in ipairs(list) do sum = sum + of(item) end
  return sum / #list
end

local function joined(entry, runs)
  local row = {id = entry.id, name = entry.name, mark = entry.mark, kept = {}, runs = runs,
    bytes_per_token = runs[1].bytes_per_token, us = math.huge}
  for i = 1, #compare.shares do row.kept[i] = mean(runs, function(run) return run.kept[i] end) end
  for _, run in ipairs(runs) do row.us = math.min(row.us, run.us or math.huge) end
  if row.us == math.huge then row.us = nil end
  if runs[1].needle_rank then
    row.needle_ranks = {}
    for i, run in ipairs(runs) do row.needle_ranks[i] = run.needle_rank end
  end
  return row
end

--- Measures one entry.
-- @tparam table case
-- @tparam table entry of compare.list
-- @tparam ?function calibrate settings -> calibration; without it calibrated entries are left out
-- @treturn ?table id, name, kept (means, at compare.shares), runs, needle_ranks, bytes_per_token, us
function compare.measure(case, entry, calibrate)
  if entry.scores then
    local run = evaluated(case, ready[entry.scores](case))
    run.bytes_per_token = entry.bytes
    return joined(entry, {run})
  end
  if entry.calibrate and not calibrate then return nil end
  local runs = {}
  for i, seed in ipairs(entry.seeds and compare.seeds or {false}) do
    runs[i] = measure_predictor(case, entry, entry.calibrate and calibrate(entry.calibrate) or seed or nil)
  end
  return joined(entry, runs)
end

--- Measures the whole list.
-- @tparam table case
-- @tparam ?function calibrate
-- @tparam ?function progress called with the number done, the number in all and the name of the next one
-- @treturn {table,...} rows in the order of the list
function compare.all(case, calibrate, progress)
  local rows = {}
  for i, entry in ipairs(compare.list) do
    if progress then progress(i - 1, #compare.list, entry.name) end
    rows[#rows + 1] = compare.measure(case, entry, calibrate)
  end
  if progress then progress(#compare.list, #compare.list) end
  return rows
end

local function range(list)
  local least, most = math.huge, -math.huge
  for _, value in ipairs(list) do least, most = math.min(least, value), math.max(most, value) end
  return least, most
end

-- With five seeds: the mean, and half of their range.
local function kept_text(row, i)
  if #row.runs == 1 then return ("%.3f"):format(row.kept[i]) end
  local values = {}
  for r, run in ipairs(row.runs) do values[r] = run.kept[i] end
  local least, most = range(values)
  local spread = ("%.3f"):format((most - least) / 2):sub(2)
  return ("%.3f%s%s"):format(row.kept[i], plot.unicode() and "±" or "~", spread)
end

local function rank_text(row)
  if not row.needle_ranks then return "-" end
  if #row.needle_ranks == 1 then return tostring(row.needle_ranks[1]) end
  return ("%d..%d"):format(range(row.needle_ranks))
end

-- By characters, not by bytes.
local function padded(text, width)
  return text .. (" "):rep(width - select(2, text:gsub("[^\128-\191]", "")))
end

--- The rows as a table, one line each.
-- @tparam {table,...} rows
-- @treturn string
function compare.table_text(rows)
  local lines = {("%-25s %5s  %-10s %-10s %-10s %6s %6s"):format("predictor", "bytes", "5 %", "10 %", "20 %",
    "answer", "us")}
  for _, row in ipairs(rows) do
    lines[#lines + 1] = ("%s %-23s %5s  %s%s%s%6s %6s"):format(row.mark, row.name,
      row.bytes_per_token and ("%g"):format(row.bytes_per_token) or "-", padded(kept_text(row, 1), 11),
      padded(kept_text(row, 2), 11), padded(kept_text(row, 3), 11), rank_text(row),
      row.us and ("%.0f"):format(row.us) or "-")
  end
  return table.concat(lines, "\n")
end

--- The rows as a plot of kept mass against bytes.
-- @tparam {table,...} rows
-- @treturn string
function compare.frontier_text(rows)
  local points = {}
  for _, row in ipairs(rows) do
    if row.bytes_per_token then
      points[#points + 1] = {bytes = row.bytes_per_token, quality = row.kept[2], mark = row.mark}
    end
  end
  return require("tide.frontier").text(points)
end

--- Calibrations of some text, made once for each settings table of the list.
-- @tparam {table,...} texts captures, or tables with k and q
-- @treturn function settings -> what projection = {calibrated = } takes
function compare.calibrator(texts)
  local made = {}
  return function(settings)
    if not made[settings] then
      local arguments = {unpack(texts)}
      arguments[#arguments + 1] = settings
      made[settings] = assert(tide.calibrate(unpack(arguments)))
    end
    return made[settings]
  end
end

--- What goes into --json: the rows without what only plots use.
-- @tparam {table,...} rows
-- @treturn {table,...}
function compare.plain(rows)
  local out = {}
  for i, row in ipairs(rows) do
    out[i] = {
      id = row.id, name = row.name, bytes_per_token = row.bytes_per_token, us_per_query = row.us,
      kept_5 = row.kept[1], kept_10 = row.kept[2], kept_20 = row.kept[3],
      needle_ranks = row.needle_ranks, runs = row.runs,
    }
  end
  return out
end

return compare
