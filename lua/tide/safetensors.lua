--- safetensors files: read by mapping, written whole or not at all.
--
-- A loaded file has its tensors as fields (`c.k`), made when first read: over the mapped file on the cpu,
-- copied on any other device. `c.meta` holds the metadata, strings all of them. A file that breaks the format
-- is refused before any tensor is made. The file must not be cut short while it is open: what lay behind its
-- new end is gone, and reading there ends the process (SIGBUS). Replacing it, as save does, is fine.
-- @module tide.safetensors

local ffi = require "ffi"
local cjson = require "cjson"
local lib = require("tide.cdef").lib
local buf = require "tide.buf"
local check = require "tide.check"

if not pcall(ffi.typeof, "tide_map") then
  ffi.cdef [[
    typedef struct tide_map { const uint8_t *data; int64_t bytes; int32_t n_refs; } tide_map;
    tide_map *tide_map_open(const char *path, int32_t *out_errno);
    void tide_map_retain(tide_map *map);
    void tide_map_release(void *map);
    char *strerror(int number);
    char *realpath(const char *path, char *out);
    void free(void *memory);
    int getpid(void);
  ]]
end

local safetensors = {}
local methods = {}

local max_header_bytes = 100000000 -- the format's own limit
local max_depth = 3                -- file, tensor, shape

-- Bytes of an element; name: the dtype of tide, absent where tide has none.
local dtypes = {
  F32 = {bytes = 4, name = "f32"}, F16 = {bytes = 2, name = "f16"}, BF16 = {bytes = 2, name = "bf16"},
  F8_E4M3 = {bytes = 1, name = "f8e4m3"}, I32 = {bytes = 4, name = "i32"}, U32 = {bytes = 4, name = "u32"},
  I64 = {bytes = 8, name = "i64"}, U8 = {bytes = 1, name = "u8"},
  F64 = {bytes = 8}, U64 = {bytes = 8}, I16 = {bytes = 2}, U16 = {bytes = 2}, I8 = {bytes = 1},
    BOOL = {bytes = 1},
  F8_E5M2 = {bytes = 1},
}
local name_in_file = {}
for name, dtype in pairs(dtypes) do
  if dtype.name then name_in_file[dtype.name] = name end
end

local json = cjson.new()
json.decode_invalid_numbers(false)
json.decode_max_depth(max_depth + 1)

------------------------------------------------------------------------------------------------ reading

-- Raised inside of parse and caught by it: every reason why a header is refused.
local function refuse(format, ...) error({reason = format:format(...)}, 0) end

-- The text between the quotes that open at i, and the index of the closing one.
local function string_at(text, i)
  local from = i + 1
  while true do
    local at = text:find('["\\]', from)
    if not at then refuse("the header is not JSON: a string does not end") end
    if text:byte(at) == 34 then return text:sub(i + 1, at - 1), at end
    from = at + 2
  end
end

local function unescaped(raw)
  if not raw:find("\\", 1, true) then return raw end
  local ok, list = pcall(json.decode, '["' .. raw .. '"]')
  if not ok then refuse("the header is not JSON: a bad escape in %s", check.shown(raw)) end
  return list[1]
end

-- What the decoder cannot tell: keys that come twice, an object where a list belongs, anything that is
-- neither a string nor a plain non-negative integer, and depth.
local function scan(text)
  local open, depth, i = {}, 0, 1
  while true do
    i = text:find("[^%d%s:,]", i)
    if not i then return end
    local c = text:sub(i, i)
    if c == '"' then
      local raw, last = string_at(text, i)
      local value = text:match("^%s*:%s*(.)", last + 1)
      if value and open[depth] then
        local key = unescaped(raw)
        if open[depth][key] then refuse("the header names %s twice", check.shown(key)) end
        open[depth][key] = true
        if depth == 2 and (key == "shape" or key == "data_offsets") and value ~= "[" and value ~= '"' then
          refuse("%s of a tensor is no list", key)
        end
      end
      i = last
    elseif c == "{" or c == "[" then
      depth = depth + 1
      if depth > max_depth then refuse("the header nests deeper than %d", max_depth) end
      open[depth] = c == "{" and {}
    elseif c == "}" or c == "]" then
      depth = depth - 1
    else
      refuse("the header holds %s where only strings and non-negative integers may be (at byte %d)",
        check.shown(text:match("^[%w.+-]+", i) or c), i + 7)
    end
    i = i + 1
  end
end

local function integer_list(what, value, name)
  if type(value) ~= "table" then refuse("%s of %s is no list", what, check.shown(name)) end
  for _, v in ipairs(value) do
    if type(v) ~= "number" or v % 1 ~= 0 or v < 0 or v > 2^53 then
      refuse("%s of %s holds %s (want integers from 0 to 2^53)", what, check.shown(name), check.shown(v))
    end
  end
  return value
end

local function read_tensor(name, entry, data_bytes)
  if type(entry) ~= "table" then refuse("the entry of %s is no object", check.shown(name)) end
  local dtype = type(entry.dtype) == "string" and dtypes[entry.dtype]
  if not dtype then
    refuse("%s has an unknown dtype (got %s)", check.shown(name), check.shown(entry.dtype))
  end
  local shape = integer_list("shape", entry.shape, name)
  local offsets = integer_list("data_offsets", entry.data_offsets, name)
  if #offsets ~= 2 then refuse("data_offsets of %s has %d numbers (want 2)", check.shown(name), #offsets) end
  local first, last, bytes, empty = offsets[1], offsets[2], dtype.bytes, false
  if first > last or last > data_bytes then
    refuse("%s lies outside of the data (got %.0f..%.0f, want within 0..%.0f)", check.shown(name), first,
      last, data_bytes)
  end
  for _, extent in ipairs(shape) do
    empty = empty or extent == 0
    bytes = bytes * math.max(extent, 1)
    if bytes > 2^53 then refuse("the shape of %s overflows", check.shown(name)) end
  end
  if empty then bytes = 0 end
  if bytes ~= last - first then
    refuse("%s has %.0f bytes (want %.0f for its shape and dtype)", check.shown(name), last - first, bytes)
  end
  return {name = name, dtype = dtype.name, dtype_in_file = entry.dtype, shape = shape, first = first,
    bytes = bytes}
end

local function read_meta(entry)
  if type(entry) ~= "table" then refuse("__metadata__ is no object") end
  for key, value in pairs(entry) do
    if type(key) ~= "string" or type(value) ~= "string" then
      refuse("__metadata__ holds something else than strings (%s)", check.shown(key))
    end
  end
  return entry
end

-- Tensors follow each other without holes or overlaps and end where the file ends.
local function check_layout(tensors, data_bytes)
  table.sort(tensors, function(a, b)
    if a.first ~= b.first then return a.first < b.first end
    if a.bytes ~= b.bytes then return a.bytes < b.bytes end
    return a.name < b.name
  end)
  local at = 0
  for _, tensor in ipairs(tensors) do
    if tensor.first ~= at then
      refuse("%s %s (starts at %.0f, want %.0f)", check.shown(tensor.name),
        tensor.first < at and "overlaps the tensor before it" or "leaves a hole before it", tensor.first, at)
    end
    at = at + tensor.bytes
  end
  if at ~= data_bytes then
    refuse("the data do not end with the last tensor (got %.0f bytes, want %.0f)", data_bytes, at)
  end
end

local function header_of(map)
  if map.bytes < 8 then
    refuse("the file is too short (got %d bytes, want at least 8)", tonumber(map.bytes))
  end
  local length = ffi.new("uint64_t[1]")
  ffi.copy(length, map.data, 8)
  if length[0] > max_header_bytes then
    refuse("the header is too long (got %s bytes, want at most %d)", tostring(length[0]):gsub("ULL", ""),
      max_header_bytes)
  end
  local n = tonumber(length[0])
  if n > map.bytes - 8 then
    refuse("the file ends within its header (got %d bytes, want %d)", tonumber(map.bytes), n + 8)
  end
  return ffi.string(map.data + 8, n), n
end

local function parse(map)
  local text, n = header_of(map)
  if text:sub(1, 1) ~= "{" then
    refuse("the header is no JSON object (it begins with %s)", check.shown(text:sub(1, 8)))
  end
  scan(text)
  local ok, decoded = pcall(json.decode, text)
  if not ok then refuse("the header is not JSON: %s", (tostring(decoded):gsub("[%c\128-\255]", "?"))) end
  local data_bytes = tonumber(map.bytes) - 8 - n
  local meta, tensors = {}, {}
  for name, entry in pairs(decoded) do
    if name == "__metadata__" then meta = read_meta(entry)
    else tensors[#tensors + 1] = read_tensor(name, entry, data_bytes) end
  end
  check_layout(tensors, data_bytes)
  return {meta = meta, tensors = tensors, data_at = n + 8}
end

-- The map, or nil, the operating system's word, and its number.
local function open_map(path)
  local errno = ffi.new "int32_t[1]"
  local map = lib.tide_map_open(path, errno)
  if map == nil then return nil, ffi.string(ffi.C.strerror(errno[0])), errno[0] end
  return map
end

--- Opens a file. Tensors are made when first asked for.
-- @tparam context ctx
-- @tparam string path
-- @treturn[1] file tensors as fields; meta (strings), tensors (a list of name, dtype, shape, bytes), path
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code "EFILE" or "EFORMAT"
-- @usage local c = assert(tide.load "harbour.safetensors"); print(c.k, c.meta.question)
function safetensors.load(ctx, path)
  check.name("tide.load: path", path)
  local map, why = open_map(path)
  if map == nil then return nil, ("%s: %s"):format(path, why:lower()), "EFILE" end
  map = ffi.gc(map, lib.tide_map_release)
  local ok, parsed = pcall(parse, map)
  if not ok then
    lib.tide_map_release(ffi.gc(map, nil))
    if type(parsed) ~= "table" then error(parsed, 0) end
    return nil, ("%s: not a safetensors file: %s"):format(path, parsed.reason), "EFORMAT"
  end
  local by_name = {}
  for _, tensor in ipairs(parsed.tensors) do by_name[tensor.name] = tensor end
  return setmetatable({ctx = ctx, path = path, meta = parsed.meta, tensors = parsed.tensors, _map = map,
    _data_at = parsed.data_at, _by_name = by_name, _made = {}}, safetensors.class)
end

local function over_map(file, tensor)
  local data = file._map.data + file._data_at + tensor.first
  local aligned = tonumber(ffi.cast("uintptr_t", data) % dtypes[tensor.dtype_in_file].bytes) == 0
  if aligned and tensor.bytes > 0 then
    lib.tide_map_retain(file._map)
    local b, message, code = buf.wrap(file.ctx, ffi.cast("void *", data), tensor.dtype, tensor.shape,
      {device = "cpu", release = lib.tide_map_release, arg = file._map})
    if not b then lib.tide_map_release(file._map) end
    return b, message, code
  end
  local b, message, code = buf.make(file.ctx, tensor.dtype, tensor.shape, "cpu", tensor.name)
  if not b then return nil, message, code end
  local bytes = ffi.new("uint8_t[?]", tensor.bytes)
  ffi.copy(bytes, data, tensor.bytes)
  return b:write(bytes)
end

--- A tensor by name. On the cpu it lies over the file; what is written into it stays in memory.
-- @tparam string name
-- @tparam ?string device default: the context's own
-- @treturn[1] buf the same one each time for the default device
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code
-- @usage local k = assert(c:get("k", "cpu"))
function methods:get(name, device)
  if not self._map then check.misuse("%s: closed", self.path) end
  local tensor = self._by_name[name]
  if not tensor then
    local hint = self.meta[name] and "its metadata has that: meta." .. name
      or check.suggest(name, self:names())
    check.misuse("%s: no tensor %s; %s", self.path, check.shown(name), hint)
  end
  device = device or self.ctx.device
  local key = device .. "\0" .. name
  local made = self._made[key]
  if made and made._handle then return made end
  if not tensor.dtype or #tensor.shape > 5 then
    return nil, ("%s: %s cannot be held (got %s in %d dimensions, want another dtype or at most 5)"):format(
      self.path, name, tensor.dtype_in_file, #tensor.shape), "EUNSUPPORTED"
  end
  local b, message, code = over_map(self, tensor)
  if b and device ~= "cpu" then
    local host = b
    b, message, code = host:to(device)
    host:close()
  end
  if b then self._made[key] = b end
  return b, message, code
end

--- The tensors' names, as they lie in the file.
-- @treturn {string,...}
-- @usage for _, name in ipairs(c:names()) do print(name) end
function methods:names()
  local names = {}
  for i, tensor in ipairs(self.tensors) do names[i] = tensor.name end
  return names
end

--- Whether a tensor of this name is in the file.
-- @tparam string name
-- @treturn boolean
-- @usage if c:has "q" then print "it has queries" end
function methods:has(name) return self._by_name[name] ~= nil end

--- A number of the metadata.
-- @tparam string key
-- @treturn[1] number
-- @treturn[2] nil not there, or no number
-- @treturn[2] string message
-- @treturn[2] string code "EFORMAT"
-- @usage local first = assert(c:number "first_row")
function methods:number(key)
  local value = tonumber(self.meta[key])
  if value then return value end
  return nil, ("%s: metadata %s: wants a number (got %s)"):format(self.path, key,
    check.shown(self.meta[key])), "EFORMAT"
end

--- Gives the file back once the last buffer over it has closed. Again is fine.
-- @usage c:close()
function methods:close()
  if not self._map then return end
  lib.tide_map_release(ffi.gc(self._map, nil))
  rawset(self, "_map", nil)
  self._made = {}
end

safetensors.methods = methods

safetensors.class = {
  names = "_by_name", -- for completion at the prompt
  __index = function(file, key)
    local method = methods[key]
    if method then return method end
    if type(key) == "string" and key:sub(1, 1) == "_" and not file:has(key) then return nil end
    return assert(file:get(key))
  end,
  __tostring = function(file)
    return ("safetensors %s, %d tensors%s"):format(file.path, #file.tensors, file._map and "" or " (closed)")
  end,
}

------------------------------------------------------------------------------------------------ writing

-- Wide elements first, so that every tensor is aligned to its dtype; then by name.
local function ordered(tensors)
  local list = {}
  for name, b in pairs(tensors) do
    buf.view_of("tide.save: " .. check.shown(name), b)
    if type(name) ~= "string" or name == "__metadata__" then
      check.misuse("tide.save: no name for a tensor (got %s)", check.shown(name))
    end
    local width = dtypes[name_in_file[b.dtype]].bytes
    list[#list + 1] = {name = name, buf = b, width = width, bytes = b.n * width}
  end
  table.sort(list, function(a, b)
    if a.width ~= b.width then return a.width > b.width end
    return a.name < b.name
  end)
  return list
end

local function header_text(list, meta)
  local entries, at = {}, 0
  local keys = {}
  for key, value in pairs(meta or {}) do
    if type(key) ~= "string" or type(value) ~= "string" then
      check.misuse("tide.save: metadata are strings (got %s = %s)", check.shown(key), check.shown(value))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys)
  if #keys > 0 then
    local pairs_text = {}
    for i, key in ipairs(keys) do pairs_text[i] = json.encode(key) .. ":" .. json.encode(meta[key]) end
    entries[1] = '"__metadata__":{' .. table.concat(pairs_text, ",") .. "}"
  end
  for _, tensor in ipairs(list) do
    entries[#entries + 1] = ('%s:{"dtype":"%s","shape":[%s],"data_offsets":[%.0f,%.0f]}'):format(
      json.encode(tensor.name), name_in_file[tensor.buf.dtype], table.concat(tensor.buf.shape, ","), at,
      at + tensor.bytes)
    at = at + tensor.bytes
  end
  local text = "{" .. table.concat(entries, ",") .. "}"
  return text .. (" "):rep(-#text % 8)
end

local piece_bytes = 2^26

-- The elements in row-major order, some at a time: one Lua string, and one C array, end at 2 GiB.
local function write_elements(file, b, width)
  local dim = 1
  while dim < b.n_dims and b.shape[dim] == 1 do dim = dim + 1 end
  local extent = b.shape[dim] or 1
  if b.n * width <= piece_bytes or extent < 2 then
    local bytes, n, code = b:bytes()
    if not bytes then return nil, n, code end
    return file:write(ffi.string(bytes, n))
  end
  local half, ok, message = math.floor(extent / 2), true, nil
  for _, run in ipairs {{0, half}, {half, extent - half}} do
    local part = b:slice(dim - 1, run[1], run[2])
    ok, message = write_elements(file, part, width)
    part:close()
    if not ok then break end
  end
  return ok, message
end

local function write_all(file, list, meta)
  local header = header_text(list, meta)
  local length = ffi.new("uint64_t[1]", #header)
  local ok, message = file:write(ffi.string(length, 8), header)
  for _, tensor in ipairs(list) do
    if not ok then break end
    ok, message = write_elements(file, tensor.buf, tensor.width)
  end
  return ok, message
end

--- Whether two paths lead to one file that is there.
-- @tparam string a
-- @tparam string b
-- @treturn boolean
-- @usage safetensors.same_file("a.safetensors", "./a.safetensors")
function safetensors.same_file(a, b)
  local function real(path)
    local memory = ffi.C.realpath(path, nil)
    if memory == nil then return nil end
    local text = ffi.string(memory)
    ffi.C.free(memory)
    return text
  end
  local target = real(a)
  return target ~= nil and target == real(b)
end

local absent, unreadable = 2, 13 -- ENOENT, EACCES

-- nil, or why a file of that name cannot take the place of what is there: a rename would do away with a
-- device.
local function obstacle(path)
  local map, why, number = open_map(path)
  if map then lib.tide_map_release(map)
  elseif number ~= absent and number ~= unreadable then return why
  end
end

--- Writes a file: to a temporary name beside it, then renamed, so that no half file is ever seen.
-- @tparam context _ctx
-- @tparam string path
-- @tparam table tensors name -> buffer
-- @tparam ?table meta strings
-- @treturn[1] boolean true
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @treturn[2] string code "EFILE"
-- @usage assert(tide.save("k.safetensors", {k = k}, {layer = "23"}))
function safetensors.save(_ctx, path, tensors, meta)
  check.name("tide.save: path", path)
  check.type("tide.save: tensors", tensors, "table")
  if meta ~= nil then check.type("tide.save: meta", meta, "table") end
  local list = ordered(tensors)
  header_text(list, meta)
  local temporary = ("%s.%d.partial"):format(path, ffi.C.getpid())
  local file, message = nil, obstacle(path)
  if not message then file, message = io.open(temporary, "wb") end
  local ok = file ~= nil
  if file then
    ok, message = write_all(file, list, meta)
    local closed, why = file:close()
    if ok and not closed then ok, message = false, why end
    if ok then ok, message = os.rename(temporary, path) end
    if not ok then os.remove(temporary) end
  end
  if not ok then return nil, ("tide.save: %s cannot be written: %s"):format(path, message), "EFILE" end
  return true
end

return safetensors
