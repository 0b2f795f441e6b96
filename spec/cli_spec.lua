-- The program from outside: what it prints, what it refuses, and with which exit code.

local helper = require "spec.helper"
local cjson = require "cjson"

local function tide(arguments) return helper.run(helper.program .. " " .. arguments) end

-- Refused with exit code 2 and one line that holds each of the words.
local function refused(arguments, ...)
  local text, code = tide(arguments)
  assert.are.equal(2, code, arguments .. ": " .. text)
  assert.are.equal(1, select(2, text:gsub("\n", "\n")), text)
  for _, word in ipairs {...} do assert.is_truthy(text:find(word, 1, true), text) end
end

local function with_file(content, f)
  local path = os.tmpname()
  local file = assert(io.open(path, "wb"))
  file:write(content)
  file:close()
  local ok, message = pcall(f, path)
  os.remove(path)
  if not ok then error(message, 0) end
end

-- Takes every free address within 2 GiB of the VM before it starts.
local reserve = [[
#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>
__attribute__((constructor)) static void reserve(void) {
  const uintptr_t piece = 1u << 16, reach = 1u << 31;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE;
  uintptr_t vm = (uintptr_t)dlsym(RTLD_DEFAULT, "lua_newstate") & ~(piece - 1);
  for (uintptr_t at = vm - reach; at < vm + reach; at += piece) {
    mmap((void *)at, piece, PROT_NONE, flags, -1, 0);
  }
}]]

describe("the program", function()
  it("runs a text with its arguments", function()
    local text, code = tide "-e 'print(#arg, ...)' a 'b c'"
    assert.are.equal("2\ta\tb c\n", text)
    assert.are.equal(0, code)
  end)

  it("runs a file with its arguments, and a script from stdin by -", function()
    with_file("print(arg[0] == 'x', arg[1], ...)", function(path)
      assert.are.equal("false\tone\tone\n", (tide(path .. " one")))
      assert.are.equal("false\ttwo\ttwo\n", (tide("- two <" .. path)))
    end)
  end)

  it("ends an uncaught error with the message, the script's own frames and exit code 1", function()
    local text, code = tide [[-e 'local function inner() error("no tide") end inner()']]
    assert.are.equal(1, code)
    assert.is_truthy(text:find("(-e):1: no tide", 1, true), text)
    assert.is_truthy(text:find("in function 'inner'", 1, true), text)
    assert.is_falsy(text:find("lua/tide/cli.lua", 1, true), text)
  end)

  it("says what an error object is that is no text", function()
    local text, code = tide "-e 'error{}'"
    assert.are.equal(1, code)
    assert.is_truthy(text:find("table", 1, true), text)
  end)

  it("reports a syntax error with its line and exit code 1", function()
    with_file("local x = 1\nx = = 2\n", function(path)
      local text, code = tide(path)
      assert.are.equal(1, code)
      assert.is_truthy(text:find(":2:", 1, true), text)
    end)
  end)

  -- os.exit(0) used to leave at once: LuaJIT runs no finaliser then, so a context kept its device until the
  -- process was gone, and output of finalisers was lost.
  it("runs finalisers when a script leaves by os.exit, and keeps the code", function()
    local text, code = tide [[-e 'kept = newproxy(true)
      getmetatable(kept).__gc = function() print "closed" end
      os.exit(3)']]
    assert.are.equal("closed\n", text)
    assert.are.equal(3, code)
    assert.are.equal(0, select(2, tide "-e 'os.exit(true)'"))
    assert.are.equal(1, select(2, tide "-e 'os.exit(false)'"))
    assert.are.equal(0, select(2, tide "-e 'os.exit()'"))
  end)

  it("has the modules inside: it runs in an empty folder", function()
    local here = io.popen("pwd"):read "*l"
    local program = helper.program:match "^/" and helper.program or here .. "/" .. helper.program
    local text, code = helper.run("cd / && " .. program .. " -e 'print(require(\"tide\").version())'")
    assert.are.equal(0, code, text)
    assert.is_truthy(text:match "^%d+%.%d+%.%d+\n$", text)
  end)

  it("takes modules from files first where LUA_PATH names them", function()
    local program = helper.program
    local code = "-e 'print(debug.getinfo(require(\"tide\").open, \"S\").source)'"
    assert.are.equal("@lua/tide/init.lua\n", (helper.run("unset LUA_PATH; " .. program .. " " .. code)))
    assert.are.equal("@./lua/tide/init.lua\n",
      (helper.run("LUA_PATH='./lua/?.lua;./lua/?/init.lua' " .. program .. " " .. code)))
  end)

  it("had its compiler working before any driver was opened", function()
    local text = tide [[-e 'print(require("tide.cli").host.trace_compiled, (jit.status()))']]
    assert.are.equal("true\ttrue\n", text)
  end)

  -- With no address space within 2 GiB of the VM (a driver reserves wide ranges) every compilation fails
  -- after trying: a loop of 0.2 s took 271 s, and jit.status() still said true.
  it("switches the compiler off where no trace finds room, and doctor says so #fork", function()
    local library = os.tmpname()
    local compile = "cc -shared -fPIC -D_GNU_SOURCE -x c -o %s - <<'END'\n%s\nEND"
    local _, built = helper.run(compile:format(library, reserve))
    if built ~= 0 then return helper.skip "no C compiler" end
    local text, code = helper.run(("LD_PRELOAD=%s timeout 20 %s doctor"):format(library, helper.program))
    os.remove(library)
    assert.are.equal(0, code, text)
    assert.is_truthy(text:match "\nslow +jit +no trace could be compiled", text)
  end)

  -- Half a table went into a full disk, with exit code 0.
  it("says when its output was not taken", function()
    if helper.run("test -c /dev/full && echo yes") ~= "yes\n" then return helper.skip "no /dev/full" end
    for _, arguments in ipairs {"version", "inspect spec/data/harbour.safetensors --all", "-e 'print(1)'"} do
      local text, code = tide(arguments .. " > /dev/full")
      assert.are.equal("tide: cannot write to stdout: No space left on device\n", text)
      assert.are.equal(1, code)
    end
  end)

  describe("refuses with one line and exit code 2", function()
    it("an unknown option", function() refused("--jsno", "--jsno", "--help") end)
    it("an unknown command, with the nearest", function() refused("devcies", "'devcies'", "'devices'") end)
    it("a word that is like nothing", function() refused("xyzzyxyzzy", "commands:", "doctor") end)
    it("a missing file", function() refused("no/such.lua", "no/such.lua", "No such file") end)
    it("a directory", function() refused("spec/", "spec/", "a directory") end)
    it("an empty file", function()
      with_file("", function(path) refused(path, path, "empty") end)
    end)
    it("-e without a text", function() refused("-e", "-e wants a text") end)
    it("an unknown option of a command, with the nearest", function()
      refused("devices --jsno", "--jsno", "--json", "tide devices --help")
    end)
    it("a missing argument", function() refused("inspect", "file", "tide inspect --help") end)
    it("an option out of range", function()
      refused("calibrate spec/data/harbour.safetensors --rank 129 -o x", "--rank 129", "1..128")
      refused("calibrate spec/data/harbour.safetensors --rank 128 -o x", "rank out of range", "1..64")
      refused("predictor compare spec/data/harbour.safetensors --rows 0", "--rows")
    end)
    it("a device that is not there", function()
      refused("predictor compare spec/data/harbour.safetensors --device tpu", "--device", "tpu")
      refused("bench --device tpu", "--device", "tpu")
    end)
    for _, command in ipairs {"inspect", "predictor compare", "calibrate -o x"} do
      it(command .. " of a file that is missing, a directory or empty", function()
        refused(command .. " nope.safetensors", "nope.safetensors", "No such file")
        refused(command .. " spec", "spec", "a directory")
        with_file("", function(path) refused(command .. " " .. path, "empty") end)
      end)
    end
  end)

  it("lists its commands, each of which has --help with an example and --json", function()
    local overview, code = tide "--help"
    assert.are.equal(0, code)
    local n = 0
    for name in overview:match("commands\n(.*)$"):gmatch "\n?  (%l+) +[^\n]+" do
      n = n + 1
      local text, help_code = tide((name == "predictor" and "predictor compare" or name) .. " --help")
      assert.are.equal(0, help_code)
      assert.is_truthy(text:find("example\n  tide " .. name, 1, true), text)
      assert.is_truthy(text:find("--json", 1, true), text)
    end
    assert.is_true(n >= 7)
  end)
end)

describe("tide devices", function()
  it("names every device, or why it is absent", function()
    local found = cjson.decode((tide "devices --json")).devices
    local by_name = {}
    for _, device in ipairs(found) do
      by_name[device.name] = device
      assert.are.equal(device.usable, device.why_absent == nil)
    end
    assert.is_true(by_name.cpu.usable)
    assert.is_true(by_name.cpu.processors >= 1 and by_name.cpu.total_bytes > 0)
    assert.is_truthy(by_name["cuda:0"] or by_name.cuda.why_absent)
    assert.are.equal(#found, select(2, tide("devices"):gsub("\n", "\n")))
  end)
end)

describe("tide doctor", function()
  it("has one line a check and exit code 0 where the cpu path works", function()
    local text, code = tide "doctor"
    assert.are.equal(0, code, text)
    for line in text:gmatch "[^\n]+" do
      local state = line:match "^(%l+) "
      assert.is_true(state == "ok" or state == "absent" or state == "slow" or state == "failed", line)
    end
    local report = cjson.decode((tide "doctor --json"))
    assert.is_true(report.works)
    local names = {}
    for _, check in ipairs(report.checks) do names[check.name] = check.state end
    for name in ("luajit jit unwind ids core device kernels cjson argparse"):gmatch "%l+" do
      assert.is_truthy(names[name], name)
    end
    assert.are.equal("ok", names.jit)
  end)
end)

describe("tide inspect", function()
  it("lists tensors with dtype, shape and bytes, the metadata, and the text", function()
    local text = tide "inspect spec/data/harbour.safetensors"
    assert.is_truthy(text:match "\nk +bf16 +%[2326, 3, 64%] +893184\n")
    assert.is_truthy(text:match "\n  needle_first +2001\n")
    assert.is_truthy(text:find("Here is the log of a harbour.", 1, true))
    assert.is_falsy(text:find("The stranger in the green coat paid for his passage", 1, true))
    text = tide "inspect --all spec/data/harbour.safetensors"
    assert.is_truthy(text:find("paid for his passage", 1, true))
  end)

  it("says the same as JSON", function()
    local found = cjson.decode((tide "inspect --json spec/data/harbour.safetensors"))
    assert.are.equal(10, #found.tensors)
    assert.are.equal("2322", found.metadata.answer_row)
    for _, tensor in ipairs(found.tensors) do
      if tensor.name == "q" then assert.are.same({512, 9, 64}, tensor.shape) end
    end
  end)

  it("ends with exit code 1 and one line where the file is something else", function()
    local text, code = tide "inspect configure.lua"
    assert.are.equal(1, code)
    assert.is_truthy(text:match "^inspect: configure.lua: not a safetensors file: [^\n]+\n$", text)
  end)
end)

describe("--json", function()
  local json = require "tide.json"

  -- cjson refuses NaN, and writes 2^53 as 9.007199254741e+15.
  it("turns NaN and infinities into null and keeps integers in full", function()
    assert.are.equal('{"a":null,"b":null,"c":9007199254740992}',
      json.encode {a = 0 / 0, b = -math.huge, c = 2 ^ 53})
    assert.are.equal("9223372036854775807", json.encode(9223372036854775807LL))
    assert.are.equal("18446744073709551615", json.encode(18446744073709551615ULL))
    assert.are.equal("[1,0.5,true,\"\\\"\\n\"]", json.encode {1, 0.5, true, '"\n'})
  end)

  it("refuses what has no JSON", function()
    assert.has_error(function() json.encode(print) end)
    assert.has_error(function() json.encode {x = function() end} end)
  end)
end)
