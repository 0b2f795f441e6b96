-- The header is the binding: what LuaJIT read of tide.h lies in memory as the C compiler lays it out.

local ffi = require "ffi"
local helper = require "spec.helper"
local cdef = require "tide.cdef"

-- Structs of a header: name and members, in order.
local function structs_of(text)
  local list = {}
  text = text:gsub("/%*.-%*/", "")
  for body, name in text:gmatch("typedef struct [%w_]+ (%b{}) ([%w_]+);") do
    local members = {}
    for declaration in body:sub(2, -2):gmatch("[^;]+") do
      for part in declaration:gmatch("[^,]+") do
        local member = part:match("([%a_][%w_]*)%s*%[?%d*%]?%s*$")
        if member then members[#members + 1] = member end
      end
    end
    list[#list + 1] = {name = name, members = members}
  end
  return list
end

-- Compiles and runs a C program that prints size and offsets, a line each: "name size" and "name.member
-- offset".
local function layout_in_c(includes, structs)
  local lines = {"#include <stddef.h>", "#include <stdio.h>"}
  for _, header in ipairs(includes) do lines[#lines + 1] = ('#include "%s"'):format(header) end
  lines[#lines + 1] = "int main(void) {"
  for _, struct in ipairs(structs) do
    lines[#lines + 1] = ('  printf("%s %%zu\\n", sizeof(%s));'):format(struct.name, struct.name)
    for _, member in ipairs(struct.members) do
      lines[#lines + 1] = ('  printf("%s.%s %%zu\\n", offsetof(%s, %s));'):format(struct.name, member,
        struct.name, member)
    end
  end
  lines[#lines + 1] = "  return 0;\n}\n"
  local base = os.tmpname()
  local file = assert(io.open(base .. ".c", "w"))
  file:write(table.concat(lines, "\n"))
  file:close()
  local output, code = helper.run(("cc -std=c11 -Iruntime -Ikernels %s.c -o %s && %s"):format(base, base,
    base))
  os.remove(base)
  os.remove(base .. ".c")
  assert.are.equal(0, code, output)
  return output
end

local function layout_in_lua(structs)
  local lines = {}
  for _, struct in ipairs(structs) do
    lines[#lines + 1] = ("%s %d"):format(struct.name, ffi.sizeof(struct.name))
    for _, member in ipairs(struct.members) do
      lines[#lines + 1] = ("%s.%s %s"):format(struct.name, member, tostring(ffi.offsetof(struct.name,
        member)))
    end
  end
  return table.concat(lines, "\n")
end

local function plain_luajit(code)
  local paths = ("LUA_PATH='lua/?.lua;lua/?/init.lua' LUA_CPATH='%s'"):format(package.cpath)
  return (helper.run(("%s luajit -e '%s'"):format(paths, code)))
end

describe("the binding", function()
  it("lays out every struct of tide.h as the C compiler does", function()
    local structs = structs_of(cdef.header "tide.h")
    assert.is_true(#structs >= 10)
    local in_c = layout_in_c({"tide.h"}, structs)
    assert.are.equal((in_c:gsub("%s+$", "")), layout_in_lua(structs))
  end)

  it("lays out the arguments of every kernel as the C compiler does", function()
    local headers, structs = {}, {}
    for line in io.lines "kernels/kernels.def" do
      local name = line:match "^TIDE_KERNEL%(([%w_]+)%)"
      if name then
        cdef.kernel(name)
        headers[#headers + 1] = name .. ".h"
        for _, struct in ipairs(structs_of(cdef.header("kernels/" .. name
          .. ".h"))) do structs[#structs + 1] = struct end
      end
    end
    assert.is_true(#structs >= 6)
    local in_c = layout_in_c(headers, structs)
    assert.are.equal((in_c:gsub("%s+$", "")), layout_in_lua(structs))
  end)

  it("finds every function of tide.h in the library", function()
    local text, n = cdef.header "tide.h":gsub("/%*.-%*/", ""), 0
    for name in text:gmatch("(tide_[%w_]+)%([^;{}]*%);") do
      assert.is_truthy(cdef.lib[name], name)
      n = n + 1
    end
    assert.is_true(n > 60)
  end)

  it("says both numbers when the library speaks another ABI #fork", function()
    local code = [[
      local core = require "tide.core"
      local text = core.text
      package.loaded["tide.core"] = {path = core.path, text = function(name)
        return (text(name):gsub("TIDE_ABI = 1", "TIDE_ABI = 77"))
      end}
      print(select(2, pcall(require, "tide.cdef")))]]
    local output = plain_luajit(code)
    assert.is_truthy(output:find("ABI 1, this header ABI 77", 1, true), output)
  end)

  -- The binding was loaded twice into one state: "attempt to redefine". busted hides it, since it remembers
  -- what
  -- ffi.cdef was given; so a process of its own looks.
  it("survives being loaded again in a plain luajit #fork", function()
    local code = [[
      require "tide"; require "tide.safetensors"; require "tide.kernel".members(nil, "gather")
      for name in pairs(package.loaded) do
        if name:find "^tide" and name ~= "tide.core" then package.loaded[name] = nil end
      end
      local tide = require "tide"
      tide.open{device = "cpu"}
      print(tide.from{1, 2, 3}[2], pcall(require, "tide.safetensors"))]]
    local output = plain_luajit(code)
    assert.is_truthy(output:find("^3%s+true"), output)
  end)
end)

describe("a settings schema", function()
  -- Fields that Lua fills by hand, because their form differs: not named by a c of the schema.
  local by_hand = {
    tide_ctx_settings = {cpu_level = true},
    tide_predictor_settings = {summary = true, projection = true, aggregate = true, rank = true,
      no_predict = true,
      seed = true, k_map = true, q_map = true, k_mean = true, device = true, reserved = true},
    tide_calibration_settings = {centred = true, query_aware = true, reserved = true},
    tide_attend_io = {q = true, k = true, v = true, table = true, positions = true, blocks = true, out = true,
      lse = true, mass = true},
  }
  local pairs_of = {
    tide_ctx_settings = function() return require("tide.context").settings end,
    tide_predictor_settings = function() return require("tide.predictor").settings end,
    tide_calibration_settings = function() return require("tide.calibrate").settings end,
    tide_attend_io = function() return require("tide.attend").settings end,
  }

  for struct, schema in pairs(pairs_of) do
    it("has a field for each member of " .. struct, function()
      local named, members = {}, nil
      for _, field in pairs(schema().fields) do
        if field.c then named[field.c] = true end
      end
      for _, found in ipairs(structs_of(cdef.header "tide.h")) do
        if found.name == struct then members = found.members end
      end
      assert.is_true(#members > 2)
      for _, member in ipairs(members) do
        assert.is_true(named[member] or by_hand[struct][member] or false, member
          .. " has no field in the schema")
        named[member] = nil
      end
      assert.is_nil(next(named), ("%s is no member of %s"):format(tostring(next(named)), struct))
    end)
  end

  it("documents every field", function()
    for _, schema in pairs(pairs_of) do
      for name, field in pairs(schema().fields) do
        assert.are.equal("string", type(field.doc), name)
      end
    end
  end)
end)
