--- tide bench: lua/tide/bench.lua parses its own arguments.
return {
  summary = "speed of the kernels against floors measured in the same run",
  main = function(arguments) return require("tide.bench").main(arguments) end,
}
