-- The build: the generator is honest, and the probe adapts to the machine.
local helper = require "spec.helper"

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

local function succeed(command)
  local output, code = helper.run(command)
  assert(code == 0, command .. "\n" .. output)
  return output
end

-- A project of one kernel with the real generator and the real embedding, built in a second or two.
-- Its program lists what is embedded.
local stubs = {
  ["kernels/kernels.def"] = "TIDE_KERNEL(twice)\n",
  ["kernels/twice.h"] = "int twice(int x);\n",
  ["kernels/twice.c"] = [[
#include "twice.h"
int twice(int x) { return 2 * x; }
]],
  ["kernels/twice_simd.c"] = "extern int level;\n",
  ["kernels/twice.cu"] = "__global__ void twice(void) {}\n",
  ["runtime/tide.h"] = "int tide_abi(void);\n",
  ["runtime/ctx.c"] = [[
#include "tide.h"
#include "twice.h"
#include "fatbin.h"
__attribute__((visibility("default"))) int tide_abi(void) { return twice(tide_n_fatbins); }
]],
  ["runtime/module.c"] = "extern int module;\n",
  ["runtime/main.c"] = [[
#include <stdio.h>
#include "fatbin.h"
#include "lua_index.h"
int main(void) {
  for (const struct tide_fatbin *f = tide_fatbins; f->name; f++) printf("%s %llu\n", f->name, *f->size);
  for (const struct tide_lua_file *f = tide_lua_files; f->module; f++)
    printf("%s %llu %s\n", f->module, *f->size, f->data);
}
]],
  ["lua/tide/init.lua"] = "return 1",
}

local function stub_project()
  local root = succeed("mktemp -d"):match("%S+")
  succeed(("mkdir -p %s/runtime %s/kernels %s/lua/tide %s/bin"):format(root, root, root, root))
  succeed("cp configure.lua " .. root)
  succeed("cd runtime && cp embed.S fatbin.[ch] lua_index.[ch] tide.map " .. root .. "/runtime")
  for path, text in pairs(stubs) do write(root .. "/" .. path, text) end
  return root
end

-- An nvcc that writes which arguments it was called with, and a fatbinary that joins its inputs.
local function add_fake_nvcc(root)
  write(root .. "/bin/nvcc", [[
#!/bin/sh
args="$*"
while [ $# -gt 0 ]; do case $1 in -o) out=$2; shift;; -MF) dep=$2; shift;; esac; shift; done
echo "$args" > "$out"
[ -z "$dep" ] || echo "$out:" > "$dep"
]])
  write(root .. "/bin/fatbinary", [[
#!/bin/sh
out=${1#--create=}; shift
echo "$@" > "$out"
]])
  succeed("chmod +x " .. root .. "/bin/*")
end

describe("the generator #build", function()
  local root

  local function here(command) return ("cd %s && TIDE_CUDA=off %s"):format(root, command) end

  before_each(function() root = stub_project() end)
  after_each(function() helper.run("rm -rf " .. root) end)

  it("finds the committed build.ninja current", function()
    local output, code = helper.run("luajit configure.lua --check")
    assert.are.equal("", output)
    assert.are.equal(0, code)
  end)

  it("says nothing about the machine", function()
    for line in io.lines("build.ninja") do
      assert.is_nil(line:match("[%s=\"'I]/%w"), line)
    end
  end)

  it("writes the same text each time", function()
    succeed(here "luajit configure.lua")
    local first = helper.read(root .. "/build.ninja")
    succeed(here "rm build.ninja && luajit configure.lua")
    assert.are.equal(first, helper.read(root .. "/build.ninja"))
  end)

  it("refuses a stray source file by name", function()
    for _, path in ipairs {"kernels/stray.c", "kernels/stray.cu", "scripts/stray.c", "runtime/sub/stray.c"} do
      succeed(here("mkdir -p $(dirname " .. path .. ") && touch " .. path))
      local output, code = helper.run(here "luajit configure.lua")
      assert.are.equal(1, code)
      assert.is_truthy(output:find(path .. ": nobody claims this file", 1, true), output)
      os.remove(root .. "/" .. path)
    end
  end)

  it("refuses a kernel without its files", function()
    write(root .. "/kernels/kernels.def", "TIDE_KERNEL(twice)\nTIDE_KERNEL(thrice)\n")
    local output, code = helper.run(here "luajit configure.lua")
    assert.are.equal(1, code)
    assert.is_truthy(output:find("kernels/thrice.h: not found", 1, true), output)
  end)

  it("calls a build.ninja stale that lacks a file", function()
    succeed(here "luajit configure.lua")
    succeed(here "luajit configure.lua --check")
    write(root .. "/runtime/later.c", "extern int later;\n")
    local output, code = helper.run(here "luajit configure.lua --check")
    assert.are.equal(1, code)
    assert.is_truthy(output:find("build.ninja is stale", 1, true), output)
  end)

  it("refuses an unknown option with the ones it knows", function()
    local output, code = helper.run("luajit configure.lua --chekc")
    assert.are.equal(1, code)
    assert.is_truthy(output:find("unknown option --chekc (want --check", 1, true), output)
  end)
end)

describe("the build #build", function()
  local root

  local function ninja(environment, arguments)
    return succeed(("cd %s && %s ninja %s"):format(root, environment or "TIDE_CUDA=off", arguments or ""))
  end

  lazy_setup(function()
    root = stub_project()
    succeed("cd " .. root .. " && luajit configure.lua")
    ninja()
  end)
  lazy_teardown(function() helper.run("rm -rf " .. root) end)

  it("does nothing the second time but ask whether the machine changed", function()
    local output = ninja()
    assert.is_truthy(output:match("^%[1/%d+%] probe toolchain\n?$"), output)
  end)

  -- Without restat the generator's own edge stays dirty for ever: "still dirty after 100 tries".
  it("runs a touched generator once and is quiet then", function()
    succeed("touch " .. root .. "/configure.lua")
    assert.is_truthy(ninja():find("configure build.ninja", 1, true))
    assert.is_nil(ninja():find("configure build.ninja", 1, true))
  end)

  it("embeds Lua and the headers as text, and an empty fatbin without nvcc", function()
    local output = succeed(root .. "/build/tide"):gsub("\n+", "\n"):gsub("%s*$", "")
    assert.are.equal("twice 0\ntide 8 return 1\ntide.h 20 int tide_abi(void);\n"
      .. "kernels/twice.h 18 int twice(int x);", output)
  end)

  it("builds again when a flag of the environment changes", function()
    assert.is_truthy(ninja("TIDE_CUDA=off CFLAGS=-O1"):find("cc build/obj/runtime/ctx.o", 1, true))
    assert.is_truthy(ninja():find("cc build/obj/runtime/ctx.o", 1, true))
  end)

  it("takes in a new file without being told", function()
    write(root .. "/runtime/later.c", "extern int later;\n")
    assert.is_truthy(ninja():find("cc build/obj/runtime/later.o", 1, true))
    os.remove(root .. "/runtime/later.c")
    ninja()
  end)

  it("notices an nvcc that appears, and compiles device code alone", function()
    add_fake_nvcc(root)
    local output = ninja("NVCC=bin/nvcc CUDA_HOME=")
    assert.is_nil(output:find("FAILED", 1, true))
  end)

  it("builds one target and PTX for development, five and PTX for release", function()
    add_fake_nvcc(root)
    local setting = ("NVCC=%s/bin/nvcc"):format(root)
    local fatbin = root .. "/build/obj/kernels/twice.fatbin"
    ninja(setting)
    local _, images = helper.read(fatbin):gsub("%-%-image3", "")
    assert.are.equal(2, images)
    assert.is_truthy(helper.read(fatbin):find("kind=elf,sm=90a,", 1, true))
    ninja(setting .. " TIDE_GENCODE=release")
    for _, want in ipairs {"elf,sm=80", "elf,sm=90", "elf,sm=90a", "elf,sm=100", "elf,sm=120", "ptx,sm=80"} do
      assert.is_truthy(helper.read(fatbin):find("kind=" .. want .. ",", 1, true), want)
    end
    local called = helper.read(root .. "/build/obj/kernels/twice.sm_90a")
    assert.is_truthy(called:find("arch=compute_90a,code=sm_90a", 1, true), called)
    ninja()
    assert.are.equal("", helper.read(fatbin))
  end)

  it("goes on with the CPU when nvcc is broken, and says why", function()
    write(root .. "/bin/nvcc", "#!/bin/sh\necho 'nvcc fatal error: no host compiler' >&2; exit 1\n")
    succeed("chmod +x " .. root .. "/bin/nvcc")
    local output = ninja(("NVCC=%s/bin/nvcc"):format(root))
    local want = "bin/nvcc does not work: nvcc fatal error: no host compiler"
    assert.is_truthy(output:find(want, 1, true), output)
    ninja()
  end)

  it("refuses an unknown GPU target in one line", function()
    add_fake_nvcc(root)
    local output, code = helper.run(("cd %s && NVCC=%s/bin/nvcc TIDE_GENCODE=sm_9 ninja"):format(root, root))
    assert.are_not.equal(0, code)
    local want = "TIDE_GENCODE: unknown target (got sm_9, want release, development"
    assert.is_truthy(output:find(want, 1, true), output)
    ninja()
  end)

  it("names the package when there is no compiler", function()
    local output, code = helper.run(("cd %s && TIDE_CUDA=off CC=no-such-cc ninja"):format(root))
    assert.are_not.equal(0, code)
    assert.is_truthy(output:find("no C compiler no-such-cc: apt-get install gcc, or set CC", 1, true), output)
    ninja()
  end)

  it("names the package when there is no luajit", function()
    helper.run(("cd %s && mkdir -p few && ln -sf $(command -v ninja) $(command -v sh) few"):format(root))
    local output, code = helper.run(("cd %s && PATH=$PWD/few ninja"):format(root))
    assert.are_not.equal(0, code)
    assert.is_truthy(output:find("luajit not found: apt-get install luajit", 1, true), output)
  end)

  it("works with clang", function()
    if select(2, helper.run("command -v clang")) ~= 0 then helper.skip("no clang here") end
    local output, code = helper.run(("cd %s && TIDE_CUDA=off CC=clang ninja"):format(root))
    assert.are.equal(0, code, output)
    assert.is_nil(output:find("warning", 1, true), output)
    ninja()
  end)
end)
