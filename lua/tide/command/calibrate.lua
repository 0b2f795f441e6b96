--- tide calibrate FILES... -o OUT: projections from the keys of a model's own text.
local cli = require "tide.cli"

local calibrate = {
  summary = "principal directions of a model's keys, as a file for predictors",
  example = "  tide calibrate a.safetensors b.safetensors --rank 32 -o p.safetensors",
}

function calibrate.options(parser)
  parser:argument("files", "captures (tensors k and, for --query-aware, q)"):args "+"
  parser:option("--rank", "width of the stored vectors, 1 to 128", "32"):convert(tonumber)
  parser:flag("--centred", "subtract the mean key")
  parser:flag("--query-aware", "weigh directions by the queries that meet them")
  parser:option("-o --out", "the file to write"):count(1)
end

function calibrate.run(options)
  local rank = options.rank
  if not (rank >= 1 and rank <= 128 and rank % 1 == 0) then
    cli.refuse("calibrate: --rank %s (want an integer in 1..128)", tostring(rank))
  end
  local arguments = {}
  for i, path in ipairs(options.files) do
    cli.check_file("calibrate", path, "a capture")
    arguments[i] = path
  end
  arguments[#arguments + 1] = {
    rank = rank, centred = options.centred, query_aware = options.query_aware, file = options.out,
  }
  local ok, maps, message = pcall(require("tide").calibrate, unpack(arguments))
  if not ok then cli.refuse("%s", maps) end
  if not maps then cli.fail("calibrate: %s", message) end
  if options.json then
    return print(require("tide.json").encode {out = options.out, rank = rank, files = #options.files})
  end
  print(("%s: rank %d, keys of %s"):format(options.out, rank, table.concat(options.files, " ")))
end

return calibrate
