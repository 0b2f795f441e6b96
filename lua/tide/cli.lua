--- The program `tide`: what its arguments mean.
-- @module tide.cli

local check = require "tide.check"

local cli = {}

local commands = {"bench", "calibrate", "devices", "doctor", "inspect", "predictor", "version"}

local overview = [[
tide: the KV cache of language models, scripted in Lua

  tide                          a prompt (statements from stdin when that is no terminal)
  tide FILE [ARGUMENTS]         runs a Lua script; require "tide" is there
  tide -e CODE [ARGUMENTS]      runs a text
  tide COMMAND [OPTIONS]        COMMAND --help says more

commands
]]

local ending = {__tostring = function(e) return e.message end}

--- Ends the program with exit code 2; a usage error is one line that says what would be right.
-- @tparam string message with the placeholders of string.format
-- @usage require("tide.cli").refuse("inspect: %s: no such file", path)
function cli.refuse(message, ...)
  error(setmetatable({message = message:format(...), code = 2}, ending), 0)
end

--- Ends the program with exit code 1: the usage was right, the work failed.
-- @tparam string message with the placeholders of string.format
function cli.fail(message, ...)
  error(setmetatable({message = message:format(...), code = 1}, ending), 0)
end

--- Refuses what cannot be read as a file: missing, a directory, empty.
-- @tparam string who the command, for the message
-- @tparam string path
-- @tparam string want what the file should be
function cli.check_file(who, path, want)
  local file, why = io.open(path, "rb")
  if not file then cli.refuse("%s: %s (want %s)", who, why, want) end
  local _, message, code = file:read(0)
  local size = file:seek "end"
  file:close()
  if code == 21 then cli.refuse("%s: %s: a directory (want %s)", who, path, want) end
  if code then cli.refuse("%s: %s (want %s)", who, message, want) end
  if size == 0 then cli.refuse("%s: %s: an empty file (want %s)", who, path, want) end
end

--- Opens the device that an option names as the default one, or refuses.
-- @tparam string who the command, for the message
-- @tparam ?string name nil: cuda:0 where usable, else cpu
function cli.open_device(who, name)
  local ok, ctx, message = pcall(require("tide").open, name and {device = name})
  if not ok then ctx, message = nil, ctx end
  if not ctx then cli.refuse("%s: --device %s: %s", who, name or "", message) end
end

local function is_command(name)
  for _, command in ipairs(commands) do
    if command == name then return true end
  end
  return false
end

local function print_overview()
  io.write(overview)
  for _, name in ipairs(commands) do
    io.write(("  %-12s %s\n"):format(name, require("tide.command." .. name).summary))
  end
end

--- Parses arguments; a mistake is refused in one line.
-- @tparam string command for the message
-- @tparam table parser of argparse
-- @tparam {string,...} arguments
-- @treturn table
function cli.parse(command, parser, arguments)
  local ok, result = parser:pparse(arguments)
  if ok then return result end
  cli.refuse("%s: %s (see %s --help)", command, (tostring(result):gsub("%s*\n%s*", ", ")), parser._name)
end

local function run_command(name, arguments)
  local command = require("tide.command." .. name)
  if command.main then return command.main(arguments) end
  local parser = require "argparse"("tide " .. name, command.summary)
  parser:epilog("example\n" .. command.example)
  command.options(parser)
  if #parser._commands == 0 then parser:flag("--json", "one JSON value on stdout instead of text") end
  return command.run(cli.parse(name, parser, arguments))
end

-- Scripts see their arguments as arg and as `...`, as in luajit.
local function run_chunk(script, name, arguments)
  arguments[0] = name
  rawset(_G, "arg", arguments)
  script(unpack(arguments))
end

local function run_file(path, arguments)
  if path ~= "-" then cli.check_file("tide", path, "a Lua script") end
  local chunk, message = loadfile(path ~= "-" and path or nil)
  if not chunk then cli.fail("%s", message) end
  run_chunk(chunk, path, arguments)
end

local function run_text(code, arguments)
  if not code then cli.refuse "tide: -e wants a text of Lua (tide -e 'print(1)')" end
  local chunk, message = loadstring(code, "=(-e)")
  if not chunk then cli.fail("%s", message) end
  run_chunk(chunk, "-e", arguments)
end

local function refuse_word(word)
  if word:match "^%-." then cli.refuse("tide: unknown option %s (want -e CODE, --help, --version)", word) end
  local nearest = check.nearest(word, commands)
  if nearest then cli.refuse("tide: no command and no file '%s' (did you mean '%s'?)", word, nearest) end
  cli.refuse("tide: no command and no file '%s' (commands: %s)", word, table.concat(commands, " "))
end

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

local function dispatch(word, arguments)
  if word == nil then return require("tide.repl").main() end
  if word == "-h" or word == "--help" or word == "help" then return print_overview() end
  if word == "--version" or word == "-v" then word = "version" end
  if word == "-e" then return run_text(table.remove(arguments, 1), arguments) end
  if is_command(word) then return run_command(word, arguments) end
  if word ~= "-" and not exists(word) then
    if word:match "[/.]" then cli.check_file("tide", word, "a Lua script") end
    refuse_word(word)
  end
  return run_file(word, arguments)
end

-- Finalisers run, so devices are given back, whatever code a script leaves with.
local function close_state_on_exit()
  local exit = os.exit
  os.exit = function(code) exit(code == nil and true or code, true) end -- luacheck: ignore 122
end

-- Frames below the script are the program's own.
local function cut_traceback(text)
  return (text:gsub("\n\tlua/tide/cli%.lua:.*$", ""))
end

-- A message that was made for the user stands alone; anything else comes with its traceback.
local function explain(problem)
  if type(problem) == "table" and problem.code then return problem end
  local text = type(problem) == "string" and problem or tostring(problem)
  return {message = cut_traceback(debug.traceback(text, 2)), code = 1}
end

--- Runs the program.
-- @tparam table argv arguments, [0] the program
-- @tparam table host what main.c knows: luajit, trace_compiled, is_terminal(fd)
-- @treturn int exit code
function cli.main(argv, host)
  cli.host = host
  close_state_on_exit()
  local word, arguments = argv[1], {}
  for i = 2, #argv do arguments[i - 1] = argv[i] end
  local ok, result = xpcall(function() return dispatch(word, arguments) end, explain)
  if ok then return result or 0 end
  io.stdout:flush()
  io.stderr:write(result.message, "\n")
  return result.code
end

return cli
