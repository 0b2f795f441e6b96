-- The arrows of the architecture, by reading the sources: who may include, call and name what.
local helper = require "spec.helper"

local function without_comments(text)
  return (text:gsub("/%*.-%*/", " "):gsub("//[^\n]*", ""))
end

local function without_strings(text) return (text:gsub('"[^"\n]*"', '""')) end

local function sources(folder)
  return helper.files(folder, "*.[ch]*")
end

local function basename(path) return path:match("[^/]+$") end

-- Every file and every pattern it should not contain, as lines for a failure that can be read.
local function offenders(files, patterns, allowed, prepare)
  local found = {}
  for _, path in ipairs(files) do
    local text = prepare(helper.read(path))
    for _, pattern in ipairs(patterns) do
      local at = not allowed(basename(path)) and text:match(pattern)
      if at then found[#found + 1] = path .. ": " .. at end
    end
  end
  return found
end

local function nobody() return false end

local function code_only(text) return without_strings(without_comments(text)) end

local function is_program(name) return name == "main.c" or name:match("^cli_.*%.[ch]$") end

local function is_lua_host(name)
  return is_program(name) or name == "module.c" or name:match("^policy_lua%.[ch]$")
    or name:match("^lua_.*%.[ch]$")
end

describe("the layers #build", function()
  it("are read from sources that exist", function()
    assert.is_true(#sources("runtime") > 10)
    assert.is_true(#sources("kernels") > 10)
  end)

  it("let kernels/ include nothing of runtime/", function()
    local found = {}
    for _, path in ipairs(sources("kernels")) do
      for include in without_comments(helper.read(path)):gmatch('#%s*include%s*"([^"]+)"') do
        local file = io.open("kernels/" .. include)
        if file then file:close() else found[#found + 1] = path .. ": " .. include end
      end
    end
    assert.are.same({}, found)
  end)

  it("keep Lua's headers in the host, the module and the program", function()
    local headers = {'#%s*include%s*[<"]lua%.h[>"]', '#%s*include%s*[<"]lauxlib%.h[>"]',
      '#%s*include%s*[<"]lualib%.h[>"]', '#%s*include%s*[<"]luajit%.h[>"]'}
    assert.are.same({}, offenders(sources("runtime kernels"), headers, is_lua_host, without_comments))
  end)

  it("keep the names of CUDA in dev_cuda, its list of driver entries, and device code", function()
    local names = {"%f[%w_]cu[A-Z]%w+%s*%(", "%f[%w_]CU[a-z]%w+", "%f[%w_]cuda[A-Z]%w+", "cuda%w*%.h"}
    local function allowed(name)
      return name:match("^dev_cuda%w*%.[ch]$") or name:match("^cuda_") or name:match("%.cuh?$")
    end
    assert.are.same({}, offenders(sources("runtime kernels"), names, allowed, without_comments))
  end)

  it("leave printing, exiting and the environment to the program", function()
    local calls = {"%f[%w_]printf%s*%(", "%f[%w_]puts%s*%(", "%f[%w_]putchar%s*%(", "%f[%w_]perror%s*%(",
      "%f[%w_]stdout%f[^%w_]", "%f[%w_]stderr%f[^%w_]", "%f[%w_]exit%s*%(", "%f[%w_]_exit%s*%(",
      "%f[%w_]abort%s*%(",
      "%f[%w_]secure_getenv%s*%(", "%f[%w_]getenv%s*%("}
    assert.are.same({}, offenders(sources("runtime kernels"), calls, is_program, code_only))
  end)

  it("let modules require tide's own, LuaJIT's own, cjson and argparse only", function()
    local found = {}
    local known = {ffi = true, bit = true, jit = true, cjson = true, argparse = true}
    for _, path in ipairs(helper.files("lua", "*.lua")) do
      for name in helper.read(path):gmatch("require%s*%(?%s*[\"']([%w_.]+)[\"']") do
        local own = known[name] or name == "tide" or name:match("^tide%.") or name:match("^jit%.")
          or name:match("^table%.") or name:match("^cjson%.") or name == "string.buffer"
        if not own then found[#found + 1] = path .. ": " .. name end
      end
    end
    assert.are.same({}, found)
  end)

  -- A Lua function cast to a C one is a callback: called from compiled code, it ends the process with
  -- "bad callback", and no pcall catches that.
  it("cast no Lua function to a C function", function()
    assert.are.same({}, offenders(helper.files("lua scripts spec", "*.lua"),
      {"ffi%.cast%s*%b()"}, nobody, function(text)
        local casts = {}
        for cast in text:gmatch("ffi%.cast%s*%b()") do
          if cast:find("function", 1, true) then casts[#casts + 1] = cast end
        end
        return table.concat(casts, "\n")
      end))
  end)
end)
