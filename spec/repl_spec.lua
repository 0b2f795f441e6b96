-- The prompt, driven as people drive it: lines on stdin, and a typing session in a terminal where tmux is.

local helper = require "spec.helper"

-- Lines through stdin: stdout and stderr together, and the exit code.
local function typed(...)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(table.concat({...}, "\n"), "\n")
  file:close()
  local text, code = helper.run(helper.program .. " <" .. path)
  os.remove(path)
  return text, code
end

local function shows(want, ...)
  local text, code = typed(...)
  assert.are.equal(want, text)
  assert.are.equal(0, code)
end

describe("the prompt, from stdin", function()
  it("shows what an expression is worth, without banner or colour", function()
    shows("3\n", "1 + 2")
    shows("1\n\"two\"\nnil\n", '1, "two", nil')
    shows("", "local x = 1", "y = 2")
  end)

  it("prints tables on one line, or indented where they are long", function()
    shows('{1, 2, name = "x", nested = {true}}\n', '{1, 2, name = "x", nested = {true}}')
    shows("{}\n", "{}")
    local text = typed "local t = {} for i = 1, 100 do t[i] = i end return t"
    assert.is_truthy(text:match "^{1, 2, .*, 20, %.%.%. 80 more}\n$", text)
    text = typed "local t = {} for i = 1, 9 do t[i] = ('long'):rep(i) end return t"
    assert.is_truthy(text:match '^{\n  "long",\n.*\n}\n$', text)
  end)

  it("calls nobody's __index to print a table, and survives one in a loop", function()
    shows("{}\n", "setmetatable({}, {__index = function() error 'called' end})")
    local text, code = typed("t = {} t.t = t", "t")
    assert.are.equal(0, code)
    assert.is_truthy(text:find("t = {", 1, true), text)
  end)

  it("shows a buffer as dtype, shape, device, extremes, mean, NaN count and a picture", function()
    local text = typed 'tide.from{1, 0/0, 3}:to "cpu"'
    for _, words in ipairs {"buf f32[3] cpu", "min 1 at (0)", "max 3 at (2)", "mean 2", "nan 1"} do
      assert.is_truthy(text:find(words, 1, true), text)
    end
  end)

  it("is silent after a semicolon", function() shows("", "1 + 2;", "3 ;  ") end)

  it("keeps the last ten results", function()
    shows("3\n6\n6\n3\n", "3", "_ * 2", "_", "_3")
    local lines = {}
    for i = 1, 12 do lines[i] = i .. ";" end
    lines[#lines + 1] = "_1 + 100 * _10"
    shows("312\n", unpack(lines))
    shows("nil\n", "_4")
  end)

  it("keeps top-level locals", function()
    shows("7\n", "local a, b = 3, 4", "a + b")
    shows("8\n", "local function twice(x) return 2 * x end", "twice(4)")
    shows("nil\n", "local nothing", "nothing")
  end)

  it("reads on until a statement is whole", function()
    shows("1\n2\n", "for i = 1, 2 do", "  print(i)", "end")
    shows("3\n", "1 +", "2")
    shows('"a\\nb"\n', "[[a", "b]]")
    shows("5\n", "(function()", "return 5", "end)()")
  end)

  -- "unfinished string near '<eof>'" ends like an unfinished statement but no line could ever complete it:
  -- the prompt would swallow all that follows.
  it("does not wait for the end of a quoted string", function()
    local text, code = typed('"abc', "print 'never'")
    assert.are.equal("stdin:1: unfinished string near '<eof>'\n", text)
    assert.are.equal(1, code)
  end)

  it("ends at the first error with exit code 1", function()
    local text, code = typed("print 'one'", "error 'no'", "print 'two'")
    assert.are.equal(1, code)
    assert.is_truthy(text:match "^one\n.*no", text)
    assert.is_falsy(text:find("two", 1, true), text)
  end)

  it("says where an error came from, without its own frames", function()
    local text = typed("function inner() error 'deep' end", "function outer() inner() return 1 end",
      "outer()")
    assert.is_truthy(text:match "^stdin:1: deep\nstack traceback:\n", text)
    assert.is_truthy(text:find("in function 'inner'", 1, true), text)
    assert.is_falsy(text:find("repl.lua", 1, true), text)
  end)

  it("refuses to read a name that nobody made, with the nearest one", function()
    local text, code = typed("prnit(1)")
    assert.are.equal("stdin:1: unknown name 'prnit' (did you mean 'print'?)\n", text)
    assert.are.equal(1, code)
  end)

  it("refuses input that ends inside a statement", function()
    local text, code = typed("for i = 1, 2 do")
    assert.are.equal("the input ended inside a statement\n", text)
    assert.are.equal(1, code)
  end)

  it("has commands: .help, .mem, .time, .doctor, .quit", function()
    local text = typed(".help", ".mem", ".time 1 + 1", ".quit", "print 'after'")
    for _, words in ipairs {".mem", "Lua's own heap", "2\n", " ms\n"} do
      assert.is_truthy(text:find(words, 1, true), text)
    end
    assert.is_falsy(text:find("after", 1, true), text)
    local refusal, code = typed ".hlep"
    assert.are.equal("no command '.hlep' (.help lists them)\n", refusal)
    assert.are.equal(1, code)
  end)

  it("explains names of the Lua modules and of the header", function()
    assert.is_truthy((typed "?buf:show"):find("a small picture", 1, true))
    assert.is_truthy((typed "?predictor.open"):find("Opens a predictor", 1, true))
    assert.is_truthy((typed "?tide_topk"):find("NaN after", 1, true))
    assert.are.equal("no help for 'buf:shwo' (did you mean 'buf:show'?)\n", (typed "?buf:shwo"))
  end)

  -- ?predictor, which .help gives as its example, answered "no help for 'predictor'": functions were known by
  -- their places in the modules only, and the texts of modules by none.
  it("explains what tide offers by the name that is written, without the context", function()
    local text = typed "?predictor"
    assert.is_truthy(text:find("Three choices: summary", 1, true), text)
    assert.is_truthy(text:find("\ntide.predictor(given)\n  Opens a predictor.\n", 1, true), text)
    assert.is_falsy(text:find("context ctx", 1, true), text)
    for name in pairs(getmetatable(require "tide").names) do
      local found, code = typed("?" .. name)
      assert.are.equal(0, code, found)
      assert.is_truthy(found:find("tide." .. name, 1, true), found)
    end
    assert.are.equal("no help for 'predictr' (did you mean 'predictor'?)\n", (typed "?predictr"))
  end)

  it("lists its commands at a bare ?, and at ?help", function()
    local list = typed ".help"
    shows(list, "?")
    shows(list, "?help")
  end)
end)

describe("completion", function()
  local complete = require "tide.complete"

  local function candidates(line, names)
    local from = #line - #line:match "[%w_.:]*$"
    return complete.candidates(names or {}, line, from, #line)
  end

  it("offers globals, keywords and fields", function()
    assert.are.same({"print"}, candidates "prin")
    assert.are.same({"repeat", "require", "return"}, candidates "x = re")
    assert.are.same({"math.floor", "math.fmod", "math.frexp"}, candidates "math.f")
    assert.are.same({"mine.deep.er"}, candidates("mine.deep.e", {mine = {deep = {er = 1}}}))
    assert.are.same({}, candidates "nobody.a")
  end)

  it("offers methods after a colon, from class tables", function()
    local class = {area = function() end, sides = 4}
    local shape = setmetatable({name = "square"}, {__index = class})
    assert.are.same({"shape:area"}, candidates("shape:", {shape = shape}))
    assert.are.same({"shape.area", "shape.name", "shape.sides"}, candidates("shape.", {shape = shape}))
    assert.are.same({"s:sub"}, candidates("s:su", {s = "text"}))
  end)

  it("offers the methods of buffers and the parts of tide that are loaded on first use", function()
    local tide = require "tide"
    local b = tide.open{device = "cpu"}:zeros{shape = {2}}
    assert.are.same({"b:show", "b:slice"}, candidates("b:s", {b = b}))
    assert.are.same({"tide.predictor"}, candidates("tide.pred", {tide = tide}))
  end)

  it("offers the tensors of a file, and nothing private until it is asked for", function()
    local c = require("tide").open{device = "cpu"}:load "spec/data/harbour.safetensors"
    assert.are.same({"c.k", "c.k_norm_w"}, candidates("c.k", {c = c}))
    assert.are.same({"c:get"}, candidates("c:g", {c = c}))
    for _, name in ipairs(candidates("c.", {c = c})) do assert.is_falsy(name:find("c._", 1, true), name) end
    assert.are.same({"mine._inner"}, candidates("mine._", {mine = {_inner = 1, __both = 2}}))
  end)

  it("never calls a user's __index", function()
    local called = false
    local trap = setmetatable({}, {__index = function() called = true end})
    assert.are.same({}, candidates("trap.a", {trap = trap}))
    assert.are.same({}, candidates("trap.a.b", {trap = trap}))
    assert.is_false(called)
  end)

  it("offers files inside quotes", function()
    assert.are.same({"spec/data/harbour.safetensors"},
      complete.candidates({}, 'tide.load "spec/data/har', 11, 24))
  end)
end)

------------------------------------------------------------------------------------------------- a terminal

local terminals = 0

-- Types into a terminal; each step is {keys..., wait = text that has to appear}. Answers the last screen.
local function session(steps)
  if select(2, helper.run "command -v tmux") ~= 0 then return helper.skip "no tmux" end
  terminals = terminals + 1
  local socket = ("tide-spec-%d-%d"):format(os.time(), terminals)
  local home = os.tmpname()
  os.remove(home)
  os.execute("mkdir " .. home)
  local tmux = "tmux -L " .. socket .. " "
  helper.run(("%s -f /dev/null new-session -d -x 100 -y 50 'HOME=%s %s; echo left with $?; sleep 60'")
    :format(tmux, home, helper.program))
  local screen
  local function wait_for(text)
    for _ = 1, 100 do
      screen = helper.run(tmux .. "capture-pane -p")
      if screen:find(text, 1, true) then return true end
      helper.run "sleep 0.1"
    end
  end
  local missing
  for _, step in ipairs(steps) do
    for _, key in ipairs(step) do helper.run(tmux .. "send-keys '" .. key:gsub("'", "'\\''") .. "'") end
    if not wait_for(step.wait) then
      missing = step.wait
      break
    end
  end
  helper.run(tmux .. "kill-server")
  local history = io.open(home .. "/.tide_history")
  local kept = history and history:read "*a"
  if history then history:close() end
  helper.run("rm -r " .. home)
  if missing then error(("'%s' did not appear on\n%s"):format(missing, screen), 2) end
  return screen, kept
end

describe("the prompt, in a terminal", function()
  it("greets, completes, shows, and leaves at Ctrl-D with the history kept", function()
    local screen, history = session {
      {wait = "Ctrl-D leaves\n>"},
      {"math.flo", "Tab", wait = "math.floor"},
      {"(2.5)", "Enter", wait = "\n2\n"},
      {"local kept = 40 + 2", "Enter", wait = "kept for the session (said once)"},
      {"kept", "Enter", wait = "\n42\n"},
      {"for i = 1, 2 do", "Enter", wait = "\n>>"},
      {"print(i * 111) end", "Enter", wait = "\n222\n"},
      {"broken +* line", "Enter", wait = "expected near '+'"},
      {"Up", "Up", wait = "> print(i * 111) end\n"},
      {"C-c", wait = "^C"},
      {"C-d", wait = "left with 0"},
    }
    if not screen then return end
    assert.is_truthy(history:find("math.floor", 1, true))
  end)

  -- A compiled loop looks at no hook: the first Ctrl-C did nothing, the second ended the process and with it
  -- the session.
  it("ends a compiled loop at Ctrl-C and keeps the session, compiler included", function()
    session {
      {wait = "Ctrl-D leaves\n>"},
      {"mark = 12345", "Enter", wait = "> "},
      {"n = 0 while true do n = n + 1 end", "Enter", wait = "end\n"},
      {"C-c", wait = "interrupted\n>"},
      {"mark", "Enter", wait = "\n12345\n"},
      {"n > 1000 and jit.status() and 'compiled'", "Enter", wait = '"compiled"'},
      {"C-d", wait = "left with 0"},
    }
  end)

  -- An error raised once is caught by the loop's own pcall, and the loop goes on.
  it("ends a loop that swallows errors at Ctrl-C", function()
    session {
      {wait = "Ctrl-D leaves\n>"},
      {"while true do pcall(function() for i = 1, 1e12 do end end) end", "Enter", wait = "end) end\n"},
      {"C-c", wait = "interrupted\n>"},
      {"pcall(function() while true do end end)", "Enter", wait = "end end)\n"},
      {"C-c", wait = "end end)\n^Cinterrupted\n>"},
      {"6 * 7", "Enter", wait = "\n42\n"},
      {"C-d", wait = "left with 0"},
    }
  end)

  it("ends a loop of buffer calls at Ctrl-C, and the buffers still work", function()
    session {
      {wait = "Ctrl-D leaves\n>"},
      {"b = tide.zeros{shape = {1000}}", "Enter", wait = "> "},
      {"while true do b:fill(1) end", "Enter", wait = "end\n"},
      {"C-c", wait = "interrupted"},
      {"b:describe().mean", "Enter", wait = "\n1\n"},
      {"C-d", wait = "left with 0"},
    }
  end)
end)
