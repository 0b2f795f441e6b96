--- The prompt: reads statements, runs them so that Ctrl-C ends them, shows what they return.
-- @module tide.repl

local cli = require "tide.cli"
local check = require "tide.check"
local complete = require "tide.complete"
local interrupt = require "tide.interrupt"
local pretty = require "tide.pretty"

local repl = {}

local n_kept = 10

--- A session: the names that statements see and make.
-- Reading a name that nobody made raises, with the nearest one.
-- @treturn table
function repl.session()
  local names, declared = {}, {}
  local session = {names = names, declared = declared, results = {}}
  local function unknown(_, name)
    local value = rawget(_G, name)
    if value ~= nil or declared[name] or type(name) ~= "string" then return value end
    local nearest = check.nearest(name, complete.names(names, _G))
    local hint = nearest and (" (did you mean '%s'?)"):format(nearest) or ""
    error(("unknown name '%s'%s"):format(name, hint), 2)
  end
  setmetatable(names, {__index = unknown})
  names._G = names
  for i = 1, n_kept do declared["_" .. i] = true end
  declared._ = true
  return session
end

-- A local would be gone with its line, so it becomes a name of the session.
local function keep_locals(session, text)
  local kept, n = text:gsub("^%s*local%s+function%s+([%a_])", "function %1")
  if n > 0 then return kept, true end
  local names, rest = text:match "^%s*local%s+([%a_][%w_,%s]*)(.*)$"
  if not names then return text, false end
  for name in names:gmatch "[%a_][%w_]*" do session.declared[name] = true end
  return names .. (rest:match "^=" and rest or " = nil" .. rest), true
end

-- A quoted string has to end on its line; anything else that the end of input cut short can go on.
local function wants_more(message)
  return message:match "near '<eof>'$" and not message:match "unfinished string"
end

--- Compiles a statement or an expression.
-- @treturn ?function nil when it cannot run
-- @treturn ?string the compiler's message; nil when more lines are wanted
function repl.compile(session, text)
  local chunk, as_expression = loadstring("return " .. text, "=stdin")
  local message
  if not chunk then
    local kept, was_local = keep_locals(session, text)
    chunk, message = loadstring(kept, "=stdin")
    if chunk and was_local and not session.said_locals and session.interactive then
      session.said_locals = true
      io.write "a local at the prompt is kept for the session (said once)\n"
    end
  end
  if chunk then return setfenv(chunk, session.names) end
  if wants_more(message) or wants_more(as_expression) then return nil, nil end
  return nil, message
end

local function frames_of(text)
  local frames = {}
  for frame in (text .. "\n"):gmatch "([^\n]*)\n" do
    if frame:match "%[C%]: in function 'call'$" or frame:match "lua/tide/repl%.lua" then break end
    frames[#frames + 1] = frame
  end
  return frames
end

-- Misuse names the caller's line already, so the frames inside tide are left out.
local function first_frame(frames)
  local first = 1
  for i, frame in ipairs(frames) do
    if frame:match "in function 'misuse'$" then first = i end
  end
  while first > 1 and frames[first] and frames[first]:match "lua/tide/" do first = first + 1 end
  return first
end

local function says_nothing(frame)
  return frame:match "stdin:%d+: in main chunk$" or frame:match "%[C%]: in function 'error'$"
    or frame:match "%[builtin#%d+%]"
end

-- Frames of the prompt itself say nothing to whoever typed the line.
local function cut_traceback(message)
  local head, trace = message:match "^(.-)\nstack traceback:\n(.*)$"
  if not head then return message end
  local frames = frames_of(trace)
  local first, last = first_frame(frames), #frames
  while last >= first and says_nothing(frames[last]) do last = last - 1 end
  if last < first then return head end
  return head .. "\nstack traceback:\n" .. table.concat(frames, "\n", first, last)
end

local function remember(session, value)
  table.insert(session.results, 1, value)
  session.results[n_kept + 1] = nil
  for i, kept in ipairs(session.results) do session.names["_" .. i] = kept end
  session.names._ = value
end

local function show_results(session, silent, n, ...)
  if n == 0 then return end
  if select(1, ...) ~= nil then remember(session, (...)) end
  if silent then return end
  for i = 1, n do pretty.print(select(i, ...), n > 1) end
end

local function finish(session, silent, ok, ...)
  if ok then
    local shown, message = pcall(show_results, session, silent, select("#", ...), ...)
    if not shown then io.stderr:write(tostring(message), "\n") end
    return shown
  end
  local message, interrupted = ...
  io.stdout:flush()
  io.stderr:write(interrupted and "interrupted" or cut_traceback(tostring(message)), "\n")
  return false
end

--- Runs a compiled statement and shows what it returns.
-- @treturn boolean false when it raised
function repl.run(session, chunk, silent)
  return finish(session, silent, interrupt.call(chunk))
end

local function plain_reader(interactive)
  return function(prompt)
    if interactive then io.write(prompt) io.flush() end
    return io.read "*l"
  end
end

-- Lines with editing where libedit is; a history in the home directory.
local function terminal_reader(session)
  local edit = require "tide.edit"
  local ok, why = edit.open(function(line, from, to)
    return complete.candidates(session.names, line, from, to)
  end)
  if not ok then
    io.write("no line editing: ", why, "; rlwrap tide helps meanwhile\n")
    return plain_reader(true), function() end
  end
  local history = os.getenv "HOME" and os.getenv "HOME" .. "/.tide_history"
  if history then edit.load(history) end
  local function read(prompt)
    local line = edit.read(prompt)
    if line and line:match "%S" then edit.remember(line) end
    return line
  end
  return read, function() if history then edit.save(history) end end
end

-- A whole statement or command: text and chunk; a message when it cannot be; nothing at the end of input.
local function read_statement(session, read)
  local text
  while true do
    local line = read(text and ">> " or "> ")
    if line == nil then
      if not text then return nil end
      return text, nil, "the input ended inside a statement"
    end
    if line == false then return "" end
    text = text and text .. "\n" .. line or line
    if text:match "^%s*$" or text:match "^%s*[.?]" then return text end
    local bare, silenced = text:gsub(";%s*$", "")
    local chunk, message = repl.compile(session, bare)
    if chunk or message then return text, chunk, message, silenced > 0 end
  end
end

local function run_statement(session, text, chunk, message, silent)
  if chunk then return repl.run(session, chunk, silent) end
  if message then
    io.stdout:flush()
    io.stderr:write(message, "\n")
    return false
  end
  local word = text:match "^%s*([.?].*)$"
  if not word then return true end
  return require("tide.prompt_commands").run(session, word)
end

local banner = "tide %s on %s, %s\n.help lists commands, Tab completes, Ctrl-D leaves\n"

local function greet()
  local ffi = require "ffi"
  local lib = require("tide.cdef").lib
  local cpu = require("tide.context").devices()[1]
  io.write(banner:format(ffi.string(lib.tide_version()), cpu.model, cli.host.luajit))
end

--- Runs the prompt until the input ends.
-- @treturn int exit code: 1 when input that is no terminal raised
function repl.main()
  local session = repl.session()
  session.interactive = cli.host.is_terminal(0)
  session.names.tide = require "tide"
  local read, leave = plain_reader(false), function() end
  if session.interactive then
    greet()
    read, leave = terminal_reader(session)
  end
  local ok, text, chunk, message, silent = true, read_statement(session, read)
  while text do
    ok = run_statement(session, text, chunk, message, silent) or session.interactive
    if not ok or session.leave then break end
    text, chunk, message, silent = read_statement(session, read)
  end
  leave()
  if session.interactive then io.write "\n" end
  return ok and 0 or 1
end

return repl
