-- Runs the checks on what is built; scripts/test installs and builds first.
-- Run: luajit scripts/test.lua [lint|generator|specs|fork|embed|sanitized|gpu]...; no name: all but gpu.
-- Prints a section each, the reason of each skip, and at the end one line: N passed, N failed, N skipped.

local sections = {}
local order = {"lint", "generator", "specs", "fork", "embed", "sanitized"}
local total = {pass = 0, fail = 0, skip = 0}

-- 128 and more: ended by a signal. LuaJIT answers the raw wait status, or a Lua 5.2 triple if built so.
local function exit_code(command)
  local status, kind, code = os.execute(command)
  if type(status) ~= "number" then return kind == "signal" and 128 + code or code end
  return status > 0 and status < 256 and 128 + status or math.floor(status / 256)
end

local function lines_of(command)
  local lines = {}
  for line in io.popen(command):lines() do lines[#lines + 1] = line end
  return lines
end

local function say(...)
  io.write(...)
  io.write("\n")
  io.flush()
end

local function count(outcome, name, note)
  total[outcome] = total[outcome] + 1
  if outcome ~= "pass" then say("  ", outcome == "fail" and "FAIL " or "skip ", name, ": ", note) end
end

local function check(name, command)
  local code = exit_code(command)
  count(code == 0 and "pass" or "fail", name, ("exit code %d of %s"):format(code, command))
end

---------------------------------------------------------------------------------------------------- busted

local function spec_files() return lines_of("find spec -name '*_spec.lua' | LC_ALL=C sort") end

-- What spec/report.lua wrote: outcomes, the files that finished, and where it stopped if it did not end.
local function read_record(path)
  local record = {pass = 0, fail = 0, skip = 0, finished = {}, at = "no test"}
  for line in io.lines(path) do
    local event, name = line:match("^(%w+)\t?(.*)")
    if event == "end" then record.ended = true
    elseif event == "done" then record.finished[name] = true
    elseif event == "file" or event == "test" then record.at = name
    else record[event] = record[event] + 1
    end
  end
  return record
end

-- One busted process. A run that dies, runs nothing, or leaves out a file is a failure.
local function busted(title, interpreter, arguments, files)
  local path = os.tmpname()
  local command = {interpreter, "scripts/test.lua busted --ignore-lua -r all -o spec/report.lua",
    "-Xoutput", path, arguments, table.concat(files, " ")}
  local code = exit_code(table.concat(command, " "))
  local record = read_record(path)
  os.remove(path)
  for _, outcome in ipairs {"pass", "fail", "skip"} do total[outcome] = total[outcome] + record[outcome] end
  local function failed(...) count("fail", title, string.format(...)) end
  if not record.ended then failed("ended with exit code %d in: %s", code, record.at) end
  if record.ended and code ~= 0 and record.fail == 0 then failed("exit code %d", code) end
  for _, file in ipairs(record.ended and files or {}) do
    if not record.finished[file] then failed("%s did not run", file) end
  end
  if record.pass + record.fail + record.skip == 0 then failed("no test ran") end
  return record
end

local function run_busted_here(arguments)
  arg = {[0] = "busted", unpack(arguments, 2)} -- luacheck: globals arg
  -- Called from a chunk without a file, busted ends by os.exit; else by an error with no message.
  assert(loadstring('require "busted.runner" {standalone = false}', "=busted"))()
end

---------------------------------------------------------------------------------------------------- sections

function sections.lint()
  check("luacheck", "luacheck --no-color --quiet configure.lua .luacheckrc scripts/*.lua lua spec")
end

function sections.generator() check("build.ninja is current", "luajit configure.lua --check") end

function sections.specs() busted("specs", "luajit", "--exclude-tags=gpu,slow,fork", spec_files()) end

-- Specs that may crash, or that need the truth about loading twice, get a process for each file.
function sections.fork()
  local arguments = "--tags=fork --exclude-tags=gpu,slow"
  local list = "luajit scripts/test.lua busted --ignore-lua -r all --list " .. arguments .. " "
  for _, file in ipairs(lines_of("grep -l '#fork' $(find spec -name '*_spec.lua' | LC_ALL=C sort)")) do
    if #lines_of(list .. file) > 0 then busted(file, "luajit", arguments, {file}) end
  end
end

local function run_c_programs(build, environment)
  for _, source in ipairs(lines_of("find spec/embed -name '*.c' | LC_ALL=C sort")) do
    local program = build .. "/spec/" .. source:match("([^/]+)%.c$")
    local code = exit_code((environment or "") .. " " .. program)
    if code == 77 then count("skip", program, "it says so above")
    else count(code == 0 and "pass" or "fail", program, ("exit code %d"):format(code))
    end
  end
end

function sections.embed() run_c_programs("build") end

function sections.sanitized()
  local build = "luajit configure.lua --sanitize && ninja --quiet -f build/sanitize.ninja"
  if exit_code(build) ~= 0 then return count("fail", "sanitized build", build) end
  -- The sanitized program runs busted: a plain luajit would need the sanitizer loaded before it. LuaJIT's own
  -- memory is not the leak checker's business.
  local root = "build/sanitize"
  local environment = "ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 TIDE_BUILD=" .. root
  local exclude = "--exclude-tags=gpu,slow,fork,build"
  busted("sanitized specs", environment .. " " .. root .. "/tide", exclude, spec_files())
  run_c_programs(root, environment)
end

-- On a machine that has the device nothing may be skipped.
function sections.gpu()
  local record = busted("gpu specs", "luajit", "--tags=gpu", spec_files())
  if record.skip > 0 then count("fail", "gpu specs", record.skip .. " skipped, none may be here") end
end

local function main(names)
  for _, name in ipairs(names) do
    if not sections[name] then
      io.stderr:write(("test: unknown section %s (want %s, gpu)\n"):format(name, table.concat(order, ", ")))
      os.exit(2)
    end
  end
  for _, name in ipairs(#names > 0 and names or order) do
    local started = os.time()
    say("== ", name)
    sections[name]()
    say(("   %d s"):format(os.time() - started))
  end
  if total.pass == 0 then count("fail", "everything", "no test passed") end
  say(("%d passed, %d failed, %d skipped"):format(total.pass, total.fail, total.skip))
  os.exit(total.fail == 0 and 0 or 1)
end

if arg[1] == "busted" then run_busted_here(arg) else main(arg) end
