--- tide inspect FILE: what a safetensors file holds.
local cli = require "tide.cli"

local inspect = {
  summary = "tensors, metadata and text of a safetensors file",
  example = "  tide inspect spec/data/harbour.safetensors\n  tide inspect --json x.safetensors",
}

local most_text = 240

function inspect.options(parser)
  parser:argument("file", "a safetensors file")
  parser:flag("--all", "the whole text, not its beginning and end")
end

local function shape_text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

local function sorted_pairs(meta)
  local keys = {}
  for key in pairs(meta) do keys[#keys + 1] = key end
  table.sort(keys)
  local i = 0
  return function()
    i = i + 1
    return keys[i], meta[keys[i]]
  end
end

-- A u8 tensor of one dimension that is UTF-8 by its looks: no control characters but line ends and tabs.
local function text_in(file, tensor)
  if tensor.dtype ~= "u8" or #tensor.shape ~= 1 or tensor.shape[1] == 0 then return nil end
  local bytes, n = file:get(tensor.name, "cpu"):bytes()
  local text = require("ffi").string(bytes, n)
  if text:find "[%z\1-\8\11\12\14-\31]" then return nil end
  return text
end

local function preview(text, whole)
  if whole or #text <= 2 * most_text then return text end
  local head = text:sub(1, most_text):gsub("[\192-\255][\128-\191]*$", "")
  local tail = text:sub(-most_text):gsub("^[\128-\191]+", "")
  return ("%s\n  ... %d bytes ...\n%s"):format(head, #text - #head - #tail, tail)
end

local function print_tensors(file)
  local width, total = 6, 0
  for _, tensor in ipairs(file.tensors) do width = math.max(width, #tensor.name) end
  local line = "%-" .. width .. "s  %-7s  %-20s  %12s"
  print(line:format("tensor", "dtype", "shape", "bytes"))
  for _, tensor in ipairs(file.tensors) do
    local dtype = tensor.dtype or tensor.dtype_in_file
    print(line:format(tensor.name, dtype, shape_text(tensor.shape), tensor.bytes))
    total = total + tensor.bytes
  end
  print(("%d tensors, %.0f bytes of data"):format(#file.tensors, total))
end

local function print_meta(meta)
  if next(meta) == nil then return end
  print "\nmetadata"
  for key, value in sorted_pairs(meta) do print(("  %-16s %s"):format(key, value)) end
end

local function plain(file)
  local tensors = {}
  for i, tensor in ipairs(file.tensors) do
    tensors[i] = {name = tensor.name, shape = tensor.shape, bytes = tensor.bytes,
      dtype = tensor.dtype or tensor.dtype_in_file}
  end
  return {path = file.path, tensors = tensors, metadata = file.meta}
end

function inspect.run(options)
  cli.check_file("inspect", options.file, "a safetensors file")
  local ctx = assert(require("tide.context").open {device = "cpu"})
  local file, message = require("tide.safetensors").load(ctx, options.file)
  if not file then cli.fail("inspect: %s", message) end
  if options.json then return print(require("tide.json").encode(plain(file))) end
  print_tensors(file)
  print_meta(file.meta)
  for _, tensor in ipairs(file.tensors) do
    local text = text_in(file, tensor)
    if text then print(("\n%s (%d bytes)\n%s"):format(tensor.name, #text, preview(text, options.all))) end
  end
end

return inspect
