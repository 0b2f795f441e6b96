--- Speed: how long each case takes, and against what the machine could do, measured in the same run.
--
-- A case is a table: name, shape (text), bytes (read and written), floor ("read", "mixed", "launch" or nil),
-- and make(env), which answers run(i): enqueue the i-th call. Calls rotate over env.copies sets of buffers,
-- so that what one call read has left the caches before it is read again.
-- @module tide.bench

local ffi = require "ffi"
local clock = require "tide.clock"
local json = require "tide.json"

local bench = {}

------------------------------------------------------------------------------------------------ statistics

local function quantile(sorted, q)
  local at = 1 + q * (#sorted - 1)
  local below = math.floor(at)
  local above = math.min(below + 1, #sorted)
  return sorted[below] + (sorted[above] - sorted[below]) * (at - below)
end

local function spread(samples)
  table.sort(samples)
  return {us = quantile(samples, 0.5), low = quantile(samples, 0.25), high = quantile(samples, 0.75),
    n = #samples}
end

------------------------------------------------------------------------------------------------ timing

-- The cpu runs a call to its end: one sample a call; calls too short for the clock are timed by the thousand.
local function time_on_cpu(run, options)
  local samples, started, inner = {}, clock.now(), 1
  run(0)
  local first = clock.now() - started
  if first < 20e-6 then inner = 1000 end
  local until_, i = clock.now() + options.seconds, 1
  while #samples < options.least or (clock.now() < until_ and #samples < 1000) do
    local before = clock.now()
    for _ = 1, inner do
      run(i)
      i = i + 1
    end
    samples[#samples + 1] = (clock.now() - before) / inner * 1e6
  end
  return spread(samples)
end

-- A graph of many calls, replayed: launches cost what they cost inside an engine's graph, and no more.
local function time_on_cuda(env, run, options)
  local lib, ctx = env.lib, env.handle
  local n = math.max(env.copies, 16)
  for i = 0, env.copies - 1 do run(i) end
  env.check(lib.tide_sync(ctx, 0, nil))
  local graph, from, to = ffi.new "tide_graph *[1]", ffi.new "tide_event *[1]", ffi.new "tide_event *[1]"
  env.check(lib.tide_graph_begin(ctx, 0, nil))
  for i = 0, n - 1 do run(i) end
  env.check(lib.tide_graph_end(ctx, 0, nil, graph))
  env.check(lib.tide_event_new(ctx, 0, from))
  env.check(lib.tide_event_new(ctx, 0, to))
  local samples, us = {}, ffi.new "double[1]"
  local until_ = clock.now() + options.seconds
  while #samples < options.least or (clock.now() < until_ and #samples < 1000) do
    env.check(lib.tide_event_record(from[0], nil))
    env.check(lib.tide_graph_replay(graph[0], nil))
    env.check(lib.tide_event_record(to[0], nil))
    env.check(lib.tide_event_elapsed_us(from[0], to[0], us))
    samples[#samples + 1] = us[0] / n
  end
  lib.tide_event_close(from[0])
  lib.tide_event_close(to[0])
  lib.tide_graph_close(graph[0])
  table.remove(samples, 1)
  return spread(samples)
end

local function time(env, case, run, options)
  if env.is_cuda and not case.on_host then return time_on_cuda(env, run, options) end
  return time_on_cpu(run, options)
end

------------------------------------------------------------------------------------------------ a run

-- How many sets of buffers keep a case of so many bytes out of the caches.
local function copies_for(env, bytes)
  return math.max(1, math.min(64, math.ceil(env.rotate_bytes / math.max(bytes, 1))))
end

local function measure(env, case, options)
  env.copies = case.rotates == false and 1 or copies_for(env, case.bytes)
  local run = case.make(env)
  local result = time(env, case, run, options)
  env.release()
  return result
end

local function floor_of(case, ceilings)
  if case.floor == "launch" then return ceilings.launch_us end
  local rate = case.floor == "read" and ceilings.read_gbs or case.floor == "mixed" and ceilings.copy_gbs
  return rate and case.bytes / rate / 1e3 + (ceilings.launch_us or 0) or nil
end

local function finish(case, result, ceilings, peers)
  result.name, result.shape, result.floor_kind = case.name, case.shape, case.floor
  result.floor_us = floor_of(case, ceilings)
  result.ratio = result.floor_us and result.us / result.floor_us
  result.gbs = case.bytes > 0 and case.bytes / result.us / 1e3 or nil
  result.peers = peers and peers[case.name]
  return result
end

-- The ceilings of this machine in this run, in GB/s and us; a machine without graphs has no cost of a launch.
local function ceilings_of(env, cases, options)
  local ceilings = {}
  for _, case in ipairs(cases) do
    options.progress("ceiling " .. case.name)
    local result = measure(env, case, options)
    if case.gbs then ceilings[case.gbs] = case.bytes / result.us / 1e3 end
    if case.us then ceilings[case.us] = result.us end
  end
  return ceilings
end

--- Runs cases on a context.
-- @tparam context ctx
-- @tparam ?table options names (list; default all), seconds (a case, default 1), least (samples, default 9),
-- peers (JSON of scripts/peers), progress (function of a text)
-- @treturn table device, model, processors, ceilings, cases (each name, shape, us, low, high, n, floor_us,
-- ratio, gbs, peers)
-- @usage local result = require("tide.bench").run(tide.context(), {names = {"score_max_128k"}})
function bench.run(ctx, options)
  options = setmetatable(options or {}, {__index = {seconds = 1, least = 9, progress = function() end}})
  local all = require "tide.bench_cases"
  local env = all.env(ctx)
  local wanted
  if options.names and #options.names > 0 then
    wanted = {}
    for _, name in ipairs(options.names) do wanted[name] = true end
  end
  local result = {device = ctx.device, model = env.model, processors = env.processors, cases = {}}
  result.ceilings = ceilings_of(env, all.ceilings(env), options)
  for _, case in ipairs(all.cases(env)) do
    if not wanted or wanted[case.name] then
      options.progress(case.name)
      local measured = measure(env, case, options)
      result.cases[#result.cases + 1] = finish(case, measured, result.ceilings, options.peers)
    end
  end
  return result
end

------------------------------------------------------------------------------------------------ comparison

--- What changed between two results beyond the spread of both: cases whose middle halves do not overlap.
-- @tparam table before
-- @tparam table after
-- @treturn {table,...} each name, before (us), after (us), change (0.1: 10 % slower), beyond (boolean)
-- @usage for _, d in ipairs(bench.compare(old, new)) do print(d.name, d.change, d.beyond) end
function bench.compare(before, after)
  local old, list = {}, {}
  for _, case in ipairs(before.cases) do old[case.name] = case end
  for _, case in ipairs(after.cases) do
    local was = old[case.name]
    if was then
      list[#list + 1] = {name = case.name, before = was.us, after = case.us, change = case.us / was.us - 1,
        beyond = case.low > was.high or case.high < was.low}
    end
  end
  return list
end

------------------------------------------------------------------------------------------------ printing

local function number(x)
  if not x then return "-" end
  return x >= 1000 and ("%.0f"):format(x) or x >= 10 and ("%.1f"):format(x) or ("%.2f"):format(x)
end

local function print_rows(rows)
  local widths = {}
  for _, row in ipairs(rows) do
    for i, text in ipairs(row) do widths[i] = math.max(widths[i] or 0, #text) end
  end
  for _, row in ipairs(rows) do
    local parts = {}
    for i, text in ipairs(row) do
      local padding = (" "):rep(widths[i] - #text)
      parts[i] = i <= 2 and text .. padding or padding .. text
    end
    print((table.concat(parts, "  "):gsub("%s+$", "")))
  end
end

local function print_result(result)
  print(("%s: %s, %d %s"):format(result.device, result.model, result.processors,
    result.device:find "^cuda" and "multiprocessors" or "cores"))
  local c = result.ceilings
  print(("this run: read %s GB/s, copy %s GB/s (read + written)%s"):format(number(c.read_gbs),
    number(c.copy_gbs), c.launch_us and (", an empty launch %s us"):format(number(c.launch_us)) or ""))
  local rows = {{"case", "shape", "us", "floor us", "ratio", "GB/s", "peer us", "ours/peer"}}
  for _, case in ipairs(result.cases) do
    local name, peer = next(case.peers or {})
    rows[#rows + 1] = {case.name, case.shape, number(case.us), number(case.floor_us), number(case.ratio),
      number(case.gbs), peer and name .. " " .. number(peer) or "-", peer and number(case.us / peer) or "-"}
  end
  print_rows(rows)
end

local function print_comparison(list, path)
  print("against " .. path)
  local rows = {{"case", "", "before us", "now us", "change"}}
  for _, d in ipairs(list) do
    rows[#rows + 1] = {d.name, d.beyond and (d.change > 0 and "slower" or "faster") or "",
      number(d.before), number(d.after), ("%+.1f%%"):format(d.change * 100)}
  end
  print_rows(rows)
end

------------------------------------------------------------------------------------------------ tide bench

local function read_json(path)
  local cli = require "tide.cli"
  cli.check_file("bench", path, "a JSON file of tide bench --json")
  local file = io.open(path, "rb")
  local text = file:read "*a"
  file:close()
  local ok, value = pcall(require("cjson").decode, text)
  if not ok or type(value) ~= "table" then
    cli.refuse("bench: %s: not JSON (want a file of tide bench --json)", path)
  end
  return value
end

local function parse(arguments)
  local parser = require "argparse"("tide bench", "Times kernels against floors measured in the same run.")
  parser:argument("names", "cases to run (default: all)"):args "*"
  parser:option("--device", "cpu, cuda:0 (default: the best there is)")
  parser:option("--seconds", "time for each case", "1"):convert(tonumber)
  parser:option("--against", "an earlier result, to compare with"):argname "FILE"
  parser:option("--peers", "what scripts/peers measured, to stand beside"):argname "FILE"
  parser:flag("--json", "one JSON value on stdout instead of a table")
  parser:epilog("example\n  tide bench --device cpu score_max_128k\n  tide bench --json > before.json\n"
    .. "  tide bench --against before.json")
  return require("tide.cli").parse("bench", parser, arguments)
end

local function check_names(names)
  local known, list = {}, {}
  for _, name in ipairs(require("tide.bench_cases").names) do
    known[name], list[#list + 1] = true, name
  end
  for _, name in ipairs(names) do
    if not known[name] then
      require("tide.cli").refuse("bench: no such case '%s' (want %s)", name, table.concat(list, " "))
    end
  end
end

--- The command `tide bench`.
-- @tparam {string,...} arguments
-- @usage require("tide.bench").main{"score_max_128k", "--json"}
function bench.main(arguments)
  local options = parse(arguments)
  check_names(options.names)
  local before = options.against and read_json(options.against)
  local peers = options.peers and read_json(options.peers)
  require("tide.cli").open_device("bench", options.device)
  local function progress(text) io.stderr:write("bench: ", text, "\n") end
  local result = bench.run(require("tide").context(), {names = options.names, seconds = options.seconds,
    peers = peers and peers.cases, progress = progress})
  result.peer = peers and peers.peer
  if options.json then return print(json.encode(result)) end
  print_result(result)
  if before then print_comparison(bench.compare(before, result), options.against) end
end

return bench
