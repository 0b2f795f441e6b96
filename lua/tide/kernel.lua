--- Kernels by name: what exists, which variant serves which geometry and why, and running one.
-- @module tide.kernel

local ffi = require "ffi"
local cdef = require "tide.cdef"
local buf = require "tide.buf"
local check = require "tide.check"
local lib = cdef.lib

local kernel = {}

--- The kernels and their variants.
-- @tparam context _ctx
-- @treturn {table,...} each name, variants (a list; the last that does not refuse serves)
-- @usage for _, k in ipairs(tide.kernel.list()) do print(k.name, table.concat(k.variants, " ")) end
function kernel.list(_ctx)
  local list = {}
  while true do
    local name = lib.tide_kernel_name(#list)
    if name == nil then return list end
    local variants = {}
    while lib.tide_kernel_variant(name, #variants) ~= nil do
      variants[#variants + 1] = ffi.string(lib.tide_kernel_variant(name, #variants))
    end
    list[#list + 1] = {name = ffi.string(name), variants = variants}
  end
end

local function names()
  local list = {}
  for i, k in ipairs(kernel.list()) do list[i] = k.name end
  return list
end

--- The members of a kernel's arguments, from its header.
-- @tparam context _ctx
-- @tparam string name
-- @treturn {table,...} each name, pointer (boolean), in order
-- @usage for _, member in ipairs(tide.kernel.members "gather") do print(member.name) end
function kernel.members(_ctx, name)
  local known = names()
  local found = false
  for _, other in ipairs(known) do found = found or other == name end
  if not found then
    check.misuse("kernel: no such kernel %s; %s", check.shown(name), check.suggest(name, known))
  end
  local body = cdef.header("kernels/" .. name .. ".h"):gsub("/%*.-%*/",
    ""):match("typedef struct [%w_]+ (%b{})")
  local members = {}
  for declaration in body:sub(2, -2):gmatch("[^;]+") do
    for part in declaration:gmatch("[^,]+") do
      local member = part:match("([%a_][%w_]*)%s*$")
      if member then members[#members + 1] = {name = member, pointer = part:find("*", 1, true) ~= nil} end
    end
  end
  return members
end

-- What a pointer that only has to be there points to.
local something = ffi.new "uint8_t[256]"

local function number_of(what, value)
  if value == true then return 1 end
  if value == false then return 0 end
  for i, dtype in ipairs(buf.dtypes) do
    if value == dtype then return i end
  end
  if type(value) ~= "number" then
    check.misuse("kernel: %s: wants a number, true, false or a dtype (got %s)", what, check.shown(value))
  end
  return value
end

local function pointer_of(what, value)
  if value == true then return something end
  if type(value) == "cdata" then return value end
  return buf.view_of("kernel: " .. what, value).data
end

-- The args struct, filled in.
local function fill(ctx, name, given)
  local members = kernel.members(ctx, name)
  local pointers, all = {}, {}
  for i, member in ipairs(members) do pointers[member.name], all[i] = member.pointer, member.name end
  local args = cdef.kernel(name)()
  for key, value in pairs(check.type("kernel: args", given, "table")) do
    local what = name .. "." .. tostring(key)
    if pointers[key] == nil then
      check.misuse("kernel: %s has no argument %s; %s", name, check.shown(key), check.suggest(key, all))
    end
    local set = pointers[key] and pointer_of or number_of
    if pointers[key] then args[key] = ffi.cast(ffi.typeof(args[key]), set(what, value))
    else args[key] = set(what, value) end
  end
  return args, pointers
end

--- Which variant serves these arguments on the context's device, and why the others refuse.
-- @tparam context ctx
-- @tparam string name
-- @tparam ?table args members of the struct in kernels/NAME.h: numbers, dtypes by name, buffers; true is a
-- pointer that only has to be there
-- @treturn string one line a variant
-- @usage print(tide.kernel.explain("score_blocks", {n_q_heads = 32, n_kv_heads = 8, rank = 32, n_entries =
-- 16}))
function kernel.explain(ctx, name, args)
  local struct = fill(ctx, name, args or {})
  local size = ffi.sizeof(struct)
  local n = tonumber(lib.tide_kernel_explain(ctx:handle(), 0, name, struct, size, nil, 0))
  local text = ffi.new("char[?]", n + 1)
  lib.tide_kernel_explain(ctx:handle(), 0, name, struct, size, text, n + 1)
  return (ffi.string(text):gsub("\n$", ""))
end

--- Runs a kernel on the context's device. Pointers are taken at their word: a wrong shape reads what is not
-- there.
-- @tparam context ctx
-- @tparam string name
-- @tparam table args as for explain; scratch is made where it is needed and not given
-- @tparam ?table options variant: its name; default: the one that explain names
-- @treturn[1] boolean true
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage tide.kernel.run("gather", {dst = dst, src = src, ids = ids, n = 3, n_src = 9, row_bytes = 64,
-- dst_stride = 64, src_stride = 64})
function kernel.run(ctx, name, args, options)
  for key in pairs(options or {}) do
    if key ~= "variant" then check.misuse("kernel.run: unknown option %s; want variant", check.shown(key)) end
  end
  local struct, pointers = fill(ctx, name, args)
  local size = ffi.sizeof(struct)
  local scratch
  if pointers.scratch ~= nil and not args.scratch then
    local n = tonumber(lib.tide_kernel_scratch(name, struct, size))
    local message, code
    scratch, message, code = buf.make(ctx, "f32", {n}, nil, "scratch")
    if not scratch then return nil, message, code end
    struct.scratch = n > 0 and ffi.cast("float *", scratch._view.data) or nil
  end
  local variant = options and options.variant or nil
  local ok, message, code = check.status(ctx, lib.tide_kernel_run(ctx:handle(), 0, name, variant, struct,
    size, nil))
  if scratch then
    ctx:sync()
    scratch:close()
  end
  return ok, message, code
end

return kernel
