--- What every spec may rely on: paths, preloaded bindings, an os.exit that fails, and a few helpers.
-- busted runs this file before any spec (see .busted); a spec gets the table with `require "spec.helper"`.
-- busted forgets modules between files, which the FFI does not survive: what is loaded here stays loaded.

local busted = require "busted"

local helper = {}
package.loaded["spec.helper"] = helper

helper.build = os.getenv("TIDE_BUILD") or "build"
helper.program = helper.build .. "/tide"

local function exists(path)
  local file = path and io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

local function preload(module)
  local path = package.searchpath(module, package.path) or package.searchpath(module, package.cpath)
  if path or package.preload[module] then require(module) end
end

require "ffi"
preload "tide.core"
preload "tide.cdef"

-- os.exit(0) in a spec would end the run with exit code 0 and no summary; busted itself may leave.
local exit = os.exit
os.exit = function() error("os.exit called in a spec", 2) end
busted.subscribe({"exit"}, function() os.exit = exit end)

local running
busted.subscribe({"test", "start"}, function(element)
  running = element
  return nil, true
end)

--- Skips the running test, from any depth of calls.
-- @tparam string reason what is missing here
function helper.skip(reason) running.env.pending(reason) end

--- Path of a file of the shared data, or nil.
-- @tparam string path below $TIDE_SHARED (default ../shared)
-- @treturn[1] string full path
-- @treturn[2] nil not there
-- @treturn[2] string why
function helper.shared(path)
  local full = (os.getenv("TIDE_SHARED") or "../shared") .. "/" .. path
  if exists(full) then return full end
  return nil, ("no %s (TIDE_SHARED names the folder)"):format(full)
end

--- Path of a file of the shared data; skips the running test where it is missing.
function helper.need_shared(path)
  local full, reason = helper.shared(path)
  if not full then helper.skip(reason) end
  return full
end

--- Whole text of a file.
function helper.read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

--- Runs a shell command; answers stdout and stderr together, and the exit code.
-- @usage local text, code = helper.run(helper.program .. " -e 'print(1)'")
function helper.run(command)
  local pipe = io.popen("{ " .. command .. "\n} 2>&1; printf '\\n%d' $?")
  local text = pipe:read("*a")
  pipe:close()
  local output, code = text:match("^(.*)\n(%d+)$")
  return output, tonumber(code)
end

--- Files below folders by a pattern of find's -name, sorted.
function helper.files(folders, pattern)
  local files = {}
  for path in io.popen(("find %s -type f -name '%s'"):format(folders, pattern)):lines() do
    files[#files + 1] = path
  end
  table.sort(files)
  return files
end

return helper
