--- tide predictor compare FILE: which predictor holds on a model's own keys.
local cli = require "tide.cli"

local predictor = {
  summary = "compare: every predictor on a capture, quality against bytes",
  example = "  tide predictor compare spec/data/harbour.safetensors\n"
    .. "  tide predictor compare mine.safetensors --calibrate-on other.safetensors",
}

function predictor.options(parser)
  local compare = parser:command("compare", "every predictor on a capture")
  compare:epilog("example\n" .. predictor.example)
  compare:argument("file", "a capture: safetensors with q, k, v")
  compare:option("--calibrate-on", "a capture of another text; without it the calibrated rows are left out")
  compare:option("--rows", "how many of the last rows are judged", "64"):convert(tonumber)
  compare:option("--device", "cpu, cuda:0 (default: cuda:0 where usable, else cpu)")
  compare:flag("--json", "one JSON value on stdout instead of text")
end

local function open_capture(path)
  cli.check_file("predictor compare", path, "a capture")
  local capture, message = require("tide.capture").open(path)
  if not capture then cli.fail("predictor compare: %s", message) end
  return capture
end

-- On one line of stderr, and only where somebody looks on.
local function progress()
  if not cli.host.is_terminal(2) then return nil end
  return function(done, all, name)
    io.stderr:write("\r\27[K", name and ("%d of %d: %s"):format(done + 1, all, name) or "")
  end
end

local function print_all(case, rows, options)
  local capture = case.capture
  local compare = require "tide.compare"
  print(("%s on %s: %d tokens, %d blocks of %d; the last %d rows"):format(capture.path,
    require("tide").device(), capture.tokens, capture.n_blocks, capture.block_size, case.rows))
  print "share of the true attention mass in the best 5, 10, 20 % of the blocks; how many"
  print "blocks rank above the answer's; bytes per token and kv head; us of one query"
  print ""
  print(compare.table_text(rows))
  if not options.calibrate_on then
    print "calibrated rows are left out (--calibrate-on FILE, another text)"
  end
  print "\nkept at 10 % against bytes (up and left is better; the dots: the best for so many bytes)"
  print(compare.frontier_text(rows))
end

function predictor.run(options)
  if not (options.rows and options.rows >= 1 and options.rows % 1 == 0) then
    cli.refuse("predictor compare: --rows wants an integer of 1 or more")
  end
  local compare = require "tide.compare"
  cli.open_device("predictor compare", options.device)
  local capture = open_capture(options.file)
  local calibrate = options.calibrate_on and compare.calibrator {open_capture(options.calibrate_on)}
  local case = compare.case(capture, options.rows)
  local rows = compare.all(case, calibrate, progress())
  if not options.json then return print_all(case, rows, options) end
  print(require("tide.json").encode {file = capture.path, device = require("tide").device(),
    n_blocks = capture.n_blocks, block_size = capture.block_size, predictors = compare.plain(rows)})
end

return predictor
