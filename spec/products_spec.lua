-- The products: what they link, what they export, what they keep, where they are installed.
local helper = require "spec.helper"

local function succeed(command)
  local output, code = helper.run(command)
  assert(code == 0, command .. "\n" .. output)
  return output
end

local function dynamic(path, tag)
  local names = {}
  for name in succeed("readelf -d " .. path):gmatch("%(" .. tag .. "%)[^%[\n]*%[([^%]]+)%]") do
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

-- Exported names, or what is left undefined: the last word but for the version.
local function symbols(path, selector)
  local names = {}
  for line in succeed("nm -D " .. selector .. " " .. path):gmatch("[^\n]+") do
    local kind, name = line:match("(%a) ([%w_]+)[@%w_.]*$")
    if kind and kind ~= "A" then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

local function declared_functions()
  local text = helper.read("runtime/tide.h"):gsub("/%*.-%*/", " "):gsub("#[^\n]*", ""):gsub("%b{}", " ")
  local names = {}
  for statement in text:gmatch("[^;]+") do
    local name = not statement:match("^%s*typedef") and statement:match("%f[%w_](tide_[%w_]+)%s*%(")
    if name then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- What only one of two lists has, as lines.
local function differences(want, got)
  local lines, left = {}, {}
  for _, name in ipairs(got) do left[name] = true end
  for _, name in ipairs(want) do
    if not left[name] then lines[#lines + 1] = "missing: " .. name end
    left[name] = nil
  end
  for name in pairs(left) do lines[#lines + 1] = "not declared: " .. name end
  table.sort(lines)
  return lines
end

describe("the products #build", function()
  local lib = helper.build .. "/lib/"
  -- libgcc_s is the compiler's own: cleanup while an error passes names its personality routine.
  local allowed = {["libc.so.6"] = true, ["libm.so.6"] = true, ["libgcc_s.so.1"] = true}

  local function needed_beyond_libc(path)
    local rest = {}
    for _, name in ipairs(dynamic(path, "NEEDED")) do
      if not allowed[name] and not name:match("^ld%-linux") then rest[#rest + 1] = name end
    end
    return rest
  end

  it("need the C library and LuaJIT, and nothing of CUDA or BLAS", function()
    assert.are.same({}, needed_beyond_libc(lib .. "libtide.so.0"))
    assert.are.same({"libluajit-5.1.so.2"}, needed_beyond_libc(lib .. "libtide_lua.so.0"))
    assert.are.same({"libluajit-5.1.so.2"}, needed_beyond_libc(helper.program))
  end)

  -- A module linked to libluajit brings a second LuaJIT into a process that has its own.
  it("leave the module to the LuaJIT that loads it", function()
    assert.are.same({}, needed_beyond_libc(lib .. "tide/core.so"))
  end)

  it("carry their names", function()
    assert.are.same({"libtide.so.0"}, dynamic(lib .. "libtide.so.0", "SONAME"))
    assert.are.same({"libtide_lua.so.0"}, dynamic(lib .. "libtide_lua.so.0", "SONAME"))
  end)

  -- Beyond the header: where libtide finds the Lua half, what require calls, how safetensors.lua maps a file.
  local ties = {"tide_lua_policy_host"}
  local of_the_module = {"luaopen_tide_core", "tide_map_open", "tide_map_release", "tide_map_retain"}

  it("export what tide.h declares, and nothing else", function()
    local declared = declared_functions()
    assert.is_true(#declared > 50)
    assert.are.same({}, differences(declared, symbols(lib .. "libtide.so.0", "--defined-only")))
    assert.are.same({}, differences(ties, symbols(lib .. "libtide_lua.so.0", "--defined-only")))
    local whole = {unpack(declared)}
    for _, list in ipairs {ties, of_the_module} do
      for _, name in ipairs(list) do whole[#whole + 1] = name end
    end
    assert.are.same({}, differences(whole, symbols(lib .. "tide/core.so", "--defined-only")))
  end)

  it("offer the same functions to ffi.C in the program", function()
    local exported = {}
    for _, name in ipairs(symbols(helper.program, "--defined-only")) do exported[name] = true end
    for _, name in ipairs(declared_functions()) do assert.is_true(exported[name], name) end
  end)

  it("keep libtide free of Lua", function()
    for _, name in ipairs(symbols(lib .. "libtide.so.0", "--undefined-only")) do
      assert.is_nil(name:match("^lua"), name)
    end
  end)

  it("keep no mutable state in the libraries", function()
    local mutable = {}
    for line in succeed("objdump -t " .. lib .. "libtide.a"):gmatch("[^\n]+") do
      local section, name = line:match(" O (%.%S+)%s+%x+%s+(.*)$")
      local constant = not section or section:match("^%.rodata") or section:match("^%.data%.rel%.ro")
        or name:match("DW%.ref%.__gcc_personality_v0$")
      if not constant then mutable[#mutable + 1] = section .. " " .. name end
    end
    assert.are.same({}, mutable)
  end)

  it("keep their stacks free of code", function()
    for _, name in ipairs {"lib/libtide.so", "lib/libtide_lua.so", "lib/tide/core.so", "tide"} do
      local path = helper.build .. "/" .. name
      local flags = succeed("readelf -lW " .. path):match("GNU_STACK[^\n]-(%u+)%s+0x%x+\n")
      assert.are.equal("RW", flags, path)
    end
  end)

  it("name one version in the library and for pkg-config", function()
    local ffi = require "ffi"
    ffi.cdef "const char *tide_version(void);"
    local version = ffi.string(ffi.load(lib .. "libtide.so.0").tide_version())
    for _, name in ipairs {"tide", "tide_lua"} do
      assert.are.equal(version, helper.read("runtime/" .. name .. ".pc"):match("Version: (%S+)"))
    end
  end)

  it("install below DESTDIR and PREFIX", function()
    local stage = succeed("mktemp -d"):match("%S+")
    succeed(("DESTDIR=%s PREFIX=/usr scripts/install"):format(stage))
    for _, path in ipairs {"bin/tide", "include/tide.h", "lib/libtide.so", "lib/libtide.a",
      "lib/libtide_lua.so", "lib/lua/5.1/tide/core.so", "lib/pkgconfig/tide.pc", "lib/pkgconfig/tide_lua.pc",
      "share/lua/5.1/tide/init.lua"} do
      assert.is_true(#helper.read(stage .. "/usr/" .. path) > 0, path)
    end
    local output = succeed(("readelf -d %s/usr/lib/libtide_lua.so"):format(stage))
    assert.is_truthy(output:find("$ORIGIN", 1, true))
    helper.run("rm -rf " .. stage)
  end)
end)
