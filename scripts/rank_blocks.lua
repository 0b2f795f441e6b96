-- Ranks the KV blocks of a real prompt by every predictor, and lets a policy in Lua keep a fifth of them.
-- Run: build/tide scripts/rank_blocks.lua FILE [--device NAME] [--policy FILE] [--json]
-- Prints a table of predictors, the score of every block as a plot, and what attention loses to the policy.

local tide = require "tide"
local capture = require "tide.capture"
local cli = require "tide.cli"
local compare = require "tide.compare"
local devices = require "tide.command.devices"
local evaluate = require "tide.evaluate"
local plot = require "tide.plot"

local root = arg[0]:match "^(.*)scripts/[^/]*$" or "../"
local kept_share = 0.20

local function parse(...)
  local parser = require "argparse"("tide scripts/rank_blocks.lua", "which blocks a predictor would keep")
  parser:argument("file", "a capture: safetensors with q, k, v and the place of the answer")
  parser:option("--device", "cpu, cuda:0 (default: cuda:0 where usable, else cpu)")
  parser:option("--policy", "a policy in Lua", root .. "lua/tide/policy/keep_mass.lua")
  parser:flag("--json", "one JSON value on stdout instead of text")
  return cli.parse("rank_blocks", parser, {...})
end

------------------------------------------------------------------------------------------------ measuring

-- The first part of the same prompt: what a cache could have calibrated on before the answer was asked for.
local function calibration_text(c)
  local rows = math.max(1, c.rows - 64)
  return {k = c.k:slice(0, 0, math.floor(c.tokens / 2)), q = c.q:slice(0, 0, rows), meta = c.meta}
end

-- Scores of every block by the mean key, for a row of q.
local function mean_key_scores(c, row)
  local entry = compare.entry "mean-mass"
  local p = assert(tide.predictor(compare.settings(c, entry)))
  assert(p:write(c.k))
  local scores = assert(p:score(c.q[row], {n = compare.blocks_before(c, c.first_row + row)}))
  local list = assert(scores:read()):totable()
  p:close()
  return list
end

local function count_lines(path)
  local n = 0
  for _ in io.lines(path) do n = n + 1 end
  return n
end

-- The policy decides once, before the judged rows: a fifth of all blocks may stay of those complete by then.
local function decide(c, case, path)
  cli.check_file("rank_blocks", path, "a policy in Lua")
  local policy, message = tide.policy{path = path, level = "guarded"}
  if not policy then cli.fail("rank_blocks: %s", message) end
  local scores = mean_key_scores(c, case.first_row - 1)
  local n, index = #scores, {}
  for i = 1, n do index[i] = i - 1 end
  local n_stay = math.min(n, math.floor(kept_share * c.n_blocks))
  local victims = assert(policy:victims({score = scores, index = index, born = index}, n, n - n_stay))
  local decision = {path = path, n_lines = count_lines(path), n_complete = n, stays = {}, kept = {}}
  decision.fault = policy:fault()
  for block = 0, n - 1 do decision.stays[block] = true end
  for _, block in ipairs(victims) do decision.stays[block] = nil end
  for block = 0, n - 1 do
    if decision.stays[block] then table.insert(decision.kept, block) end
  end
  policy:close()
  return decision
end

-- What the judged rows lose: they read the blocks that stayed, and what was written since.
local function judge(c, case, decision)
  local blocks = {unpack(decision.kept)}
  for block = decision.n_complete, math.ceil(c.tokens / c.block_size) - 1 do table.insert(blocks, block) end
  local io = {q = case.q, k = c.k, v = c.v, first_position = case.first_position, block_size = c.block_size,
    out = true}
  local dense = assert(assert(tide.attend(io)).out:read())
  io.blocks = assert(tide.from(blocks, "i32"))
  local kept = assert(assert(tide.attend(io)).out:read())
  local cosines = evaluate.cosines(kept, dense, case.rows, c.q_heads * c.head_dim)
  decision.cosine_mean, decision.cosine_least = 0, 1
  for _, cosine in ipairs(cosines) do
    decision.cosine_mean = decision.cosine_mean + cosine / #cosines
    decision.cosine_least = math.min(decision.cosine_least, cosine)
  end
  decision.mass = 0
  for row = 0, case.rows - 1 do
    for _, block in ipairs(blocks) do
      decision.mass = decision.mass + case.mass[row * case.mass_stride + block] / case.rows
    end
  end
end

local function measure(options)
  cli.open_device("rank_blocks", options.device)
  cli.check_file("rank_blocks", options.file, "a capture")
  local c, message = capture.open(options.file)
  if not c then cli.fail("rank_blocks: %s", message) end
  if not c.needle or c.rows < 2 then
    cli.fail("rank_blocks: %s: where is the answer? (want needle_first, needle_last, answer_row)", c.path)
  end
  local case = compare.case(c, math.min(64, c.rows - 1))
  local rows = compare.all(case, compare.calibrator {calibration_text(c)})
  local decision = decide(c, case, options.policy)
  judge(c, case, decision)
  return c, case, rows, decision
end

------------------------------------------------------------------------------------------------ printing

local function one_line(text) return (text:gsub("%s+", " "):gsub("^ ", ""):gsub(" $", "")) end

local function quoted(text) return text and '"' .. one_line(text) .. '"' or "(no text in this capture)" end

local function heading(text) print("\n" .. text .. "\n") end

local function device_line()
  for _, device in ipairs(tide.devices()) do
    if device.name == tide.device() then return (devices.line(device):gsub("%s+", " ")) end
  end
end

local function print_prompt(c)
  print(("tide %s on %s"):format(tide.version(), device_line()))
  print(("%s: %d tokens in %d blocks of %d; %d query heads on %d kv heads of %d"):format(c.path, c.tokens,
    c.n_blocks, c.block_size, c.q_heads, c.kv_heads, c.head_dim))
  print("question  " .. (c.meta.question or "-"))
  print("answer    " .. (c.meta.answer or "-"):gsub("<|.-|>", ""))
end

-- The cheapest summary beside the classic one, in words.
local function takeaway(rows)
  local by_id = {}
  for _, row in ipairs(rows) do by_id[row.id] = row end
  local mean, random = by_id["mean-mass"], by_id["random-32-max"]
  return ("At 20 %% the mean key (%g bytes) keeps %.3f, a random projection (%g bytes) %.3f, recency %.3f.")
    :format(mean.bytes_per_token, mean.kept[3], random.bytes_per_token, random.kept[3], by_id.recent.kept[3])
end

local function print_predictors(c, case, rows)
  heading "1  How much attention survives if only the best-ranked blocks are read?"
  print(compare.table_text(rows))
  print("\n" .. takeaway(rows))
  print(([[

bytes            of the summary, per token and kv head; a key itself takes %d
5, 10, 20 %%      share of the true attention mass in so many of the blocks, mean of
                 the last %d rows; block 0 and the five newest are always in
answer           how many blocks rank above the one with the answer, at the row
                 that has to know it (0: none)
us               one query over all blocks
first letter     its mark in the plot of `tide predictor compare`
random           mean of five seeds and half of their range
calibrated,      on this same text: the keys of its first half, and for
query-aware      query-aware the queries before the judged rows]])
    :format(2 * c.head_dim, case.rows))
end

local function print_scores(c)
  local needle = c.needle
  local word = c:text_of(needle.position + 1, needle.position + 1)
  heading("2  The score of every block for the row that predicts " .. quoted(word or "the answer"))
  local scores = mean_key_scores(c, needle.row)
  local marks = {[needle.first_block] = "the block with the answer"}
  print(plot.line(scores, {width = 68, height = 10, log = true, marks = marks}))
  print "\nThe share of attention that the mean key of each block predicts, by powers of ten."
  print(("Block %d, where the answer stands, reads:"):format(needle.first_block))
  print("  " .. quoted(c:block_text(needle.first_block)))
end

-- One character a block.
local function print_map(c, decision)
  local stay, go, mark = "█", "·", "▲"
  if not plot.unicode() then stay, go, mark = "#", ".", "^" end
  local width = 71
  for first = 0, decision.n_complete - 1, width do
    local cells, arrows = {}, {}
    for block = first, math.min(first + width, decision.n_complete) - 1 do
      cells[#cells + 1] = decision.stays[block] and stay or go
      arrows[#arrows + 1] = block >= c.needle.first_block and block <= c.needle.last_block and mark or " "
    end
    print(("%6d  %s"):format(first, table.concat(cells)))
    local line = table.concat(arrows)
    if line:find(mark, 1, true) then print("        " .. line .. " the answer") end
  end
end

local function needle_is_kept(c, decision)
  for block = c.needle.first_block, c.needle.last_block do
    if block < decision.n_complete and not decision.stays[block] then return false end
  end
  return true
end

local function print_policy(c, case, decision)
  heading(("3  What a policy in Lua keeps: %s, %d line%s"):format(
    decision.path, decision.n_lines, decision.n_lines == 1 and "" or "s"))
  if decision.fault then
    print("The script failed, and tail-first LRU decided: " .. decision.fault .. "\n")
  end
  print_map(c, decision)
  print(([[

%s of %d blocks stay, chosen once, before the last %d rows; these read them and
what came since.
attention kept  %.3f of the true mass, mean of the rows
cosine          mean %.3f, least %.3f: the output of attention over these blocks
                against the dense one, row by row]])
    :format(#decision.kept, decision.n_complete, case.rows, decision.mass, decision.cosine_mean,
      decision.cosine_least))
  local sentence = c:text_of(c.needle.first_token, c.needle.last_token)
  print(("the answer      %s: %s"):format(needle_is_kept(c, decision) and "kept" or "lost", quoted(sentence)))
end

local function plain(c, case, rows, decision)
  return {
    file = c.path, device = tide.device(), n_blocks = c.n_blocks, block_size = c.block_size, rows = case.rows,
    predictors = compare.plain(rows),
    needle = {
      first_block = c.needle.first_block, last_block = c.needle.last_block,
      kept = needle_is_kept(c, decision),
      text = c:text_of(c.needle.first_token, c.needle.last_token),
    },
    policy = {
      path = decision.path, n_lines = decision.n_lines, fault = decision.fault,
      n_complete = decision.n_complete, kept = decision.kept, mass = decision.mass,
      cosine_mean = decision.cosine_mean, cosine_least = decision.cosine_least,
    },
  }
end

local options = parse(...)
local c, case, rows, decision = measure(options)
if options.json then
  print(require("tide.json").encode(plain(c, case, rows, decision)))
else
  print_prompt(c)
  print_predictors(c, case, rows)
  print_scores(c)
  print_policy(c, case, decision)
end
