-- busted's output for scripts/test.lua: for people a line a file on stdout; for the runner a line an event in
-- the file that -Xoutput names, written at once, so that a crash leaves the name of the test it happened in.

local outcomes = {success = "pass", pending = "skip", failure = "fail", error = "fail"}

local function one_line(text) return (tostring(text):gsub("%s*\n%s*", " ")) end

return function(options)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.base"()
  local record = assert(io.open(options.arguments[1], "w"))
  record:setvbuf("no")
  local counts

  local function event(...) record:write(table.concat({...}, "\t"), "\n") end

  local function explain(failure)
    local message = failure.message
    if type(message) ~= "string" then message = require "pl.pretty".write(message) end
    local trace = failure.trace or failure.element.trace
    local place = trace and trace.short_src and ("%s:%d"):format(trace.short_src, trace.currentline) or "?"
    local indented = message:gsub("\n", "\n       ")
    io.write("  FAIL ", failure.name or "?", "\n       ", place, ": ", indented, "\n")
    if failure.isError and trace and trace.traceback then io.write(trace.traceback, "\n") end
  end

  local function file_start(file)
    counts = {pass = 0, fail = 0, skip = 0}
    event("file", file.name)
    return nil, true
  end

  local function file_end(file)
    io.write(("  %-34s %3d passed"):format(file.name, counts.pass),
      counts.fail > 0 and (", %d failed"):format(counts.fail) or "",
      counts.skip > 0 and (", %d skipped"):format(counts.skip) or "", "\n")
    io.flush()
    event("done", file.name)
    return nil, true
  end

  local function test_start(element)
    event("test", handler.getFullName(element))
    return nil, true
  end

  local function test_end(element, _, status)
    local outcome = outcomes[status]
    local name = one_line(handler.getFullName(element))
    counts[outcome] = counts[outcome] + 1
    if outcome == "skip" then
      local pending = handler.pendings[#handler.pendings]
      local reason = one_line(pending.message or "no reason given"):gsub("^%S+:%d+: ", "")
      io.write("  skip ", name, ": ", reason, "\n")
    elseif status == "failure" then explain(handler.failures[#handler.failures])
    elseif status == "error" then explain(handler.errors[#handler.errors])
    end
    event(outcome, name)
    return nil, true
  end

  -- Errors outside tests: a file that does not load, a setup that fails.
  local function error_outside(element)
    if element.descriptor == "it" then return nil, true end
    explain(handler.errors[#handler.errors])
    if counts then counts.fail = counts.fail + 1 end
    event("fail", one_line(element.name or element.descriptor))
    return nil, true
  end

  local function suite_end()
    event("end")
    return nil, true
  end

  busted.subscribe({"file", "start"}, file_start)
  busted.subscribe({"file", "end"}, file_end)
  busted.subscribe({"test", "start"}, test_start)
  busted.subscribe({"test", "end"}, test_end)
  busted.subscribe({"error"}, error_outside)
  busted.subscribe({"failure"}, error_outside)
  busted.subscribe({"suite", "end"}, suite_end)
  return handler
end
