-- safetensors files: what is written is read back, and whatever breaks the format is refused with one
-- sentence.

local ffi = require "ffi"
local helper = require "spec.helper"
local tide = require "tide"

describe("a safetensors file", function()
  local ctx, path
  setup(function()
    ctx = assert(tide.open{device = "cpu"})
    path = os.tmpname()
  end)
  teardown(function()
    os.remove(path)
    ctx:close()
  end)

  local function write(bytes)
    local file = assert(io.open(path, "wb"))
    file:write(bytes)
    file:close()
  end

  local function little_endian(n) return ffi.string(ffi.new("uint64_t[1]", n), 8) end

  -- A file of this header and so many bytes of data.
  local function file_of(header, data_bytes) write(little_endian(#header) .. header .. ("\0"):rep(data_bytes
    or 0)) end

  local function refused(part)
    local file, message, code = tide.load(path)
    assert.is_nil(file, part)
    assert.are.equal("EFORMAT", code, message)
    assert.is_truthy(message:find("not a safetensors file: ", 1, true), message)
    assert.is_truthy(message:find(part, 1, true), message)
    assert.is_nil(message:find("\n", 1, true), message)
  end

  local function refused_header(part, header, data_bytes)
    file_of(header, data_bytes)
    refused(part)
  end

  local function entry(name, dtype, shape, first, last)
    return ('"%s":{"dtype":"%s","shape":%s,"data_offsets":[%s,%s]}'):format(name, dtype, shape, first, last)
  end

  it("comes back as it was written, in every dtype", function()
    local tensors = {scalar = tide.from({7}, {shape = {}, dtype = "i64"}), empty = tide.buf{shape = {0, 3}}}
    for _, dtype in ipairs(require("tide.buf").dtypes) do tensors[dtype] = tide.from({{1, 2, 3}, {4, 5, 6}},
      dtype) end
    local meta = {question = 'what "is"\n\\ / this?', empty = "", ["küche"] = "näher"}
    assert(tide.save(path, tensors, meta))
    local file = assert(tide.load(path))
    assert.are.same(meta, file.meta)
    assert.are.equal(10, #file.tensors)
    for _, dtype in ipairs(require("tide.buf").dtypes) do
      assert.are.equal(dtype, file[dtype].dtype)
      assert.are.same({{1, 2, 3}, {4, 5, 6}}, file[dtype]:read():totable())
    end
    assert.are.equal(7, file.scalar:read()[0])
    assert.are.same({0, 3}, file.empty.shape)
    file:close()
  end)

  it("written from a view holds the view's elements", function()
    assert(tide.save(path, {a = tide.from{{1, 2, 3}, {4, 5, 6}}:permute{1, 0}:slice(0, 1, 2)}))
    assert.are.same({{2, 5}, {3, 6}}, assert(tide.load(path)).a:read():totable())
  end)

  it("gives each tensor the alignment of its dtype", function()
    assert(tide.save(path, {a = tide.from({1}, "u8"), b = tide.from({1, 2}, "i64"), c = tide.from({1},
      "bf16")}))
    local text = helper.read(path)
    local header = text:sub(9, 8 + text:byte(1) + 256 * text:byte(2))
    assert.are.equal(0, #header % 8)
    for name, bytes in pairs{a = 1, b = 8, c = 2} do
      local first = tonumber(header:match('"' .. name .. '":%b{}'):match('offsets":%[(%d+)'))
      assert.are.equal(0, first % bytes, name)
    end
  end)

  it("with tensors at odd addresses is read all the same", function()
    local header = "{" .. entry("a", "U8", "[1]", 0, 1) .. "," .. entry("b", "F32", "[2]", 1, 9) .. "}"
    write(little_endian(#header) .. header .. "\5" .. ffi.string(ffi.new("float[2]", 1.5, -2), 8))
    local file = assert(tide.load(path))
    assert.are.same({1.5, -2}, file.b:read():totable())
    assert.are.same({5}, file.a:read():totable())
  end)

  it("of a dtype that tide has not, or of more dimensions, opens; only that tensor is refused", function()
    file_of("{" .. entry("a", "F64", "[1]", 0, 8) .. "," .. entry("b", "U8", "[1]", 8, 9) .. ","
      .. entry("c", "U8", "[1,1,1,1,1,1]", 9, 10) .. "}", 10)
    local file = assert(tide.load(path))
    assert.are.equal(0, file.b[0])
    for _, name in ipairs{"a", "c"} do
      local b, message, code = file:get(name)
      assert.is_nil(b)
      assert.are.equal("EUNSUPPORTED", code, message)
    end
  end)

  it("names the nearest tensor when asked for one that it has not", function()
    assert(tide.save(path, {keys = tide.from{1}}))
    local file = assert(tide.load(path))
    local ok, message = pcall(function() return file.kyes end)
    assert.is_false(ok)
    assert.is_truthy(message:find('no tensor "kyes"; did you mean "keys"?', 1, true), message)
    assert.is_true(file:has "keys")
    assert.is_false(file:has "close")
  end)

  it("points at the metadata when asked for a tensor of a name that stands there", function()
    assert(tide.save(path, {q = tide.from{1}}, {first_row = "1814"}))
    local file = assert(tide.load(path))
    local ok, message = pcall(function() return file.first_row end)
    assert.is_false(ok)
    local want = 'no tensor "first_row"; its metadata has that: meta.first_row'
    assert.is_truthy(message:find(want, 1, true), message)
  end)

  it("keeps metadata as strings, and gives numbers when asked", function()
    assert(tide.save(path, {a = tide.from{1}}, {first_row = "1814", model = "m"}))
    local file = assert(tide.load(path))
    assert.are.equal("1814", file.meta.first_row)
    assert.are.equal(1814, file:number "first_row")
    local value, message, code = file:number "model"
    assert.is_nil(value)
    assert.are.equal("EFORMAT", code, message)
    assert.has_error(function() tide.save(path, {a = tide.from{1}}, {rank = 32}) end)
  end)

  it("is refused when missing, a folder, or no file at all", function()
    for name, part in pairs{["/nonexistent/x"] = "no such file", ["/tmp"] = "is a directory",
      ["/dev/null"] = ""} do
      local file, message, code = tide.load(name)
      assert.is_nil(file)
      assert.are.equal("EFILE", code)
      assert.is_truthy(message:find(name .. ": ", 1, true), message)
      assert.is_truthy(message:find(part, 1, true), message)
    end
  end)

  it("is refused when empty or cut short", function()
    write ""
    refused "too short (got 0 bytes"
    write "\1\0\0\0"
    refused "too short (got 4 bytes"
    local whole = helper.read "spec/data/harbour.safetensors"
    write(whole:sub(1, 100))
    refused "ends within its header"
    write(whole:sub(1, -2))
    refused "lies outside of the data"
  end)

  it("is refused when the header is longer than the file or than the format allows", function()
    write(little_endian(2^63) .. "{}")
    refused "too long (got 9223372036854775808 bytes, want at most 100000000)"
    write(("\255"):rep(8) .. "{}")
    refused "too long (got 18446744073709551615 bytes"
    write(little_endian(100000001) .. "{}")
    refused "too long (got 100000001 bytes"
    write(little_endian(100000000) .. "{}")
    refused "ends within its header (got 10 bytes, want 100000008)"
  end)

  it("is refused when the header is not JSON, or not an object", function()
    refused_header("no JSON object", "[1,2]")
    refused_header("no JSON object", " {}")
    refused_header("no JSON object", "\0\0{}")
    refused_header("not JSON", '{"a"')
    refused_header("not JSON", '{"a')
    refused_header("not JSON", '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}', 1)
    refused_header("not JSON", '{"a\\q":{}}')
    refused_header("not JSON", "{} {}")
    refused_header("not JSON", "{]")
    refused_header("only strings and non-negative integers", "{a:1}")
  end)

  it("is refused when it nests deeper than a shape in a tensor", function()
    refused_header("nests deeper than 3", '{"a":' .. ("["):rep(100000) .. ("]"):rep(100000) .. "}")
    refused_header("nests deeper than 3", '{"a":{"shape":[[1]]}}')
  end)

  -- A decoder keeps the last of two equal names: the bytes of the first tensor would be nobody's.
  it("is refused when a name comes twice, however it is escaped", function()
    refused_header('names "a" twice', "{" .. entry("a", "U8", "[1]", 0, 1) .. "," .. entry("a", "U8", "[1]",
      1, 2) .. "}", 2)
    refused_header('names "a" twice', "{" .. entry("a", "U8", "[1]", 0, 1) .. ","
      .. entry("\\u0061", "U8", "[1]", 1, 2) .. "}", 2)
    refused_header('names "dtype" twice',
      '{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1)
    refused_header('names "k" twice', '{"__metadata__":{"k":"1","k":"2"}}')
  end)

  it("is refused when a tensor is not whole", function()
    refused_header("no object", '{"a":1}')
    refused_header("no object", '{"a":"F32"}')
    refused_header("unknown dtype (got nil)", '{"a":{}}')
    refused_header('unknown dtype (got "F33")', "{" .. entry("a", "F33", "[1]", 0, 4) .. "}", 4)
    refused_header("unknown dtype (got 3)", '{"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}}', 4)
    refused_header("shape", '{"a":{"dtype":"U8","data_offsets":[0,1]}}', 1)
    refused_header("shape", '{"a":{"dtype":"U8","shape":"1","data_offsets":[0,1]}}', 1)
    refused_header("shape of a tensor is no list", '{"a":{"dtype":"U8","shape":{},"data_offsets":[0,1]}}', 1)
    refused_header('shape of "a" holds "1"', '{"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}}', 1)
    refused_header("data_offsets", '{"a":{"dtype":"U8","shape":[1]}}', 1)
    refused_header("has 3 numbers (want 2)", '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}', 2)
  end)

  it("is refused when a number is negative, fractional, or too large", function()
    refused_header('holds "-1"', "{" .. entry("a", "U8", "[-1]", 0, 1) .. "}", 1)
    refused_header('holds ".5"', "{" .. entry("a", "U8", "[1.5]", 0, 1) .. "}", 1)
    refused_header('holds "e0"', "{" .. entry("a", "U8", "[1e0]", 0, 1) .. "}", 1)
    refused_header("shape of a tensor is no list", '{"a":{"dtype":"U8","shape":null,"data_offsets":[0,1]}}',
      1)
    refused_header('holds "NaN"', '{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', 1)
    refused_header("outside of the data", "{" .. entry("a", "U8", "[1]", 0, "4503599627370496") .. "}", 1)
    refused_header("want integers from 0 to 2^53",
      '{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}}', 1)
    refused_header("overflows", "{" .. entry("a", "U8", "[4294967296,4294967296]", 0, 0) .. "}")
    refused_header("overflows", "{" .. entry("a", "U8", "[0,4294967296,4294967296]", 0, 0) .. "}")
  end)

  it("is refused when the bytes do not fit the shape", function()
    refused_header("has 4 bytes (want 8 for its shape and dtype)", "{" .. entry("a", "F32", "[2]", 0, 4)
      .. "}", 4)
    refused_header("has 4 bytes (want 0", "{" .. entry("a", "F32", "[0]", 0, 4) .. "}", 4)
    refused_header("lies outside", "{" .. entry("a", "F32", "[1]", 4, 0) .. "}", 4)
    refused_header("lies outside", "{" .. entry("a", "F32", "[2]", 0, 8) .. "}", 4)
  end)

  it("is refused when tensors overlap, leave holes, or leave bytes over", function()
    refused_header('"b" overlaps', "{" .. entry("a", "U8", "[4]", 0, 4) .. "," .. entry("b", "U8", "[4]", 2,
      6) .. "}", 6)
    refused_header('"b" leaves a hole', "{" .. entry("a", "U8", "[4]", 0, 4) .. "," .. entry("b", "U8",
      "[2]", 5, 7) .. "}", 7)
    refused_header('"a" leaves a hole', "{" .. entry("a", "U8", "[4]", 1, 5) .. "}", 5)
    refused_header("got 5 bytes, want 4", "{" .. entry("a", "U8", "[4]", 0, 4) .. "}", 5)
    refused_header("got 1 bytes, want 0", "{}", 1)
  end)

  it("is refused when its metadata are more than strings", function()
    refused_header("no object", '{"__metadata__":"x"}')
    refused_header("something else than strings", '{"__metadata__":{"a":1}}')
    refused_header("something else than strings", '{"__metadata__":{"a":{}}}')
  end)

  it("may hold nothing", function()
    file_of "{}"
    assert.are.equal(0, #assert(tide.load(path)).tensors)
    file_of '{"__metadata__":{}}   '
    assert.are.same({}, assert(tide.load(path)).meta)
  end)

  it("is not written half: a refusal leaves the old file and no other", function()
    local folder = os.tmpname()
    os.remove(folder)
    os.execute("mkdir " .. folder)
    local target = folder .. "/x.safetensors"
    assert(tide.save(target, {a = tide.from{1}}))
    local before = helper.read(target)
    assert.has_error(function() tide.save(target, {a = tide.from{1}, b = 3}) end)
    os.execute(("mkdir -p %s/taken.safetensors/x"):format(folder))
    local ok, message, code = tide.save(folder .. "/taken.safetensors", {a = tide.from{1}})
    assert.is_nil(ok)
    assert.are.equal("EFILE", code, message)
    assert.are.equal(before, helper.read(target))
    assert.are.equal("taken.safetensors\nx.safetensors\n", (helper.run("ls " .. folder)))
    os.execute("rm -r " .. folder)
    ok, message, code = tide.save("/nonexistent/x", {a = tide.from{1}})
    assert.is_nil(ok)
    assert.are.equal("EFILE", code, message)
  end)

  it("of any bytes is read or refused, and never more than that", function()
    math.randomseed(11)
    local header = "{" .. entry("a", "U8", "[4]", 0, 4) .. "," .. entry("b", "F32", "[1,2]", 4, 12) .. "}"
    local whole = little_endian(#header) .. header .. ("\0"):rep(12)
    local n_refused = 0
    for _ = 1, 300 do
      local at = math.random(#whole)
      write(whole:sub(1, at - 1) .. string.char(math.random(0, 255)) .. whole:sub(at + 1))
      local file, message, code = tide.load(path)
      if file then
        file:close()
      else
        n_refused = n_refused + 1
        assert.are.equal("EFORMAT", code, message)
      end
    end
    assert.is_true(n_refused > 75)
  end)
end)
