--- Help from the doc lines of the embedded modules and of tide.h.
-- @module tide.help

local core = require "tide.core"

local help = {}

local tags = {tparam = "argument:", treturn = "returns:", usage = "for example:", param = "argument:"}

local function strip(block)
  local lines = {}
  for line in block:gmatch "[^\n]+" do
    if not line:match "^%-%- @module" then
      lines[#lines + 1] = "  " .. line:gsub("^%-%-%-?%s?", ""):gsub("^@(%a+)", tags)
    end
  end
  return table.concat(lines, "\n")
end

-- Doc blocks of a Lua file: a function's right above it, the module's at the top.
local function scan_lua(module, text, found)
  local block = {}
  for line in (text .. "\n"):gmatch "([^\n]*)\n" do
    local name, arguments = line:match "^function%s+([%w_.:]+)(%b())"
    if line:match "^%-%-" then
      if line:match "^%-%-%-" then block = {} end
      block[#block + 1] = line
    else
      if #block > 0 and block[1]:match "^%-%-%-" then
        local doc = strip(table.concat(block, "\n"))
        if name then
          name = name:gsub("^methods:", module:match "[^.]*$" .. ":")
          found[#found + 1] = {name = name, title = name .. arguments, doc = doc}
        elseif block[#block]:match "^%-%- @module" then
          found[#found + 1] = {name = module, title = module, doc = doc}
        end
      end
      block = {}
    end
  end
end

-- Functions of the header with the comment above or behind them.
local function scan_header(text, found)
  local doc, inside = {}, false
  for line in text:gmatch "([^\n]*)\n" do
    if line:match "^/%*" or inside then
      if not inside then doc = {} end
      doc[#doc + 1] = "  " .. line
      inside = not line:match "%*/"
    else
      local name = line:match "^[%w_ ]+[ *](tide_[%w_]+)%("
      if name then found[#found + 1] = {name = name, title = line, doc = table.concat(doc, "\n")} end
      if line == "" then doc = {} end
    end
  end
end

-- tide.NAME is a function of a module without its context; it stands under the name that people write.
local function name_as_called(found)
  local places = {}
  for name, half in pairs(getmetatable(require "tide").names) do
    if half[2] then places[half[1]:match "[^.]*$" .. "." .. half[2]] = "tide." .. name end
  end
  for _, entry in ipairs(found) do
    local called = places[entry.name]
    if called then
      entry.title = called .. entry.title:match "%b()$":gsub("^%(ctx,?%s*", "(")
      entry.doc = entry.doc:gsub("  argument: context ctx\n", "")
      entry.place, entry.name = entry.name, called
    end
  end
end

--- All that has a doc line.
-- @treturn {table,...} name, title, doc, place (the module's own name, where that is another)
function help.entries()
  local found = {}
  for _, module in ipairs(core.texts()) do
    local text, path = core.text(module)
    if path:match "%.lua$" then scan_lua(module, text, found) end
  end
  scan_header(core.text "tide.h", found)
  name_as_called(found)
  return found
end

local function short(name) return (name:gsub(":", "."):gsub("^tide%.", "")) end

local function matches(entry, topic)
  local name = short(entry.name)
  return name == topic or name:sub(-#topic - 1) == "." .. topic or entry.place == topic
end

--- Prints what is known about a name.
-- @tparam string topic "predictor", "buf:show", "tide_attend"
-- @treturn boolean false when nothing is
function help.print(topic)
  local entries, names = help.entries(), {}
  local n = 0
  for _, entry in ipairs(entries) do
    names[#names + 1] = entry.name:gsub("^tide%.", "")
    if matches(entry, short(topic)) then
      n = n + 1
      print(entry.title)
      print(entry.doc)
    end
  end
  if n > 0 then return true end
  local nearest = require("tide.check").nearest(topic, names)
  local hint = nearest and (" (did you mean '%s'?)"):format(nearest) or ""
  io.stderr:write(("no help for '%s'%s\n"):format(topic, hint))
  return false
end

return help
