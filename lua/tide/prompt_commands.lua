--- What a line that starts with a dot or a question mark does at the prompt.
-- @module tide.prompt_commands

local prompt_commands = {}

local texts = {
  {".help", "this list"},
  {".mem", "who holds how much memory, largest first"},
  {".time EXPR", "runs it once and says how long it took, what it waited for included"},
  {".doctor", "what works here, what does not, and why"},
  {".quit", "leaves, as Ctrl-D does"},
  {"?NAME", "help: ?predictor, ?buf:show, ?tide_attend"},
}

local commands = {}

function commands.help()
  for _, line in ipairs(texts) do print(("  %-12s %s"):format(line[1], line[2])) end
  print "a line ending in ; shows nothing; _ is the last result, _1 to _10 the last ten"
  return true
end

function commands.mem()
  print(require("tide").mem())
  print(("Lua's own heap: %.2f MiB"):format(collectgarbage "count" / 1024))
  return true
end

function commands.time(session, text)
  local repl = require "tide.repl"
  local chunk, message = repl.compile(session, text)
  if not chunk then
    io.stderr:write(message or "time: the expression is not complete", "\n")
    return false
  end
  local clock = require("tide.clock").now
  local started = clock()
  local ok = repl.run(session, chunk, false)
  print(("%.3f ms"):format((clock() - started) * 1e3))
  return ok
end

function commands.doctor() require("tide.command.doctor").run {} return true end

function commands.quit(session) session.leave = true return true end

--- Runs one such line.
-- @tparam table session of tide.repl
-- @tparam string line
-- @treturn boolean false when it could not be done
function prompt_commands.run(session, line)
  local topic = line:match "^%?%s*(.-)%s*$"
  if topic == "" or topic == "help" then return commands.help() end
  if topic then return require("tide.help").print(topic) end
  local name, rest = line:match "^%.(%a*)%s*(.-)%s*$"
  local command = commands[name or ""]
  if command then return command(session, rest) end
  io.stderr:write(("no command '%s' (.help lists them)\n"):format(line))
  return false
end

return prompt_commands
