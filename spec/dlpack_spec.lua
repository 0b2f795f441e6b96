-- DLPack in and out: the layout of version 1.0, and who deletes what, once.

local ffi = require "ffi"
local tide = require "tide"
local buf = require "tide.buf"

-- Declared here anew from the published layout: the two must agree.
if not pcall(ffi.typeof, "DLManagedTensor") then
  ffi.cdef [[
    typedef struct { int32_t device_type; int32_t device_id; } DLDevice;
    typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
    typedef struct {
      void *data; DLDevice device; int32_t ndim; DLDataType dtype;
      int64_t *shape; int64_t *strides; uint64_t byte_offset;
    } DLTensor;
    typedef struct DLManagedTensor {
      DLTensor dl_tensor; void *manager_ctx; void (*deleter)(struct DLManagedTensor *self);
    } DLManagedTensor;
  ]]
end

local function managed(b) return ffi.cast("DLManagedTensor *", (assert(b:to_dlpack()))) end

local function held(label)
  for _, line in ipairs(tide.mem()) do
    if line.label == label then return line.bytes end
  end
end

describe("a DLPack tensor", function()
  local ctx
  setup(function() ctx = assert(tide.open{device = "cpu"}) end)
  teardown(function() ctx:close() end)

  it("describes the buffer that it came from", function()
    local b = tide.from{{1, 2, 3}, {4, 5, 6}}:permute{1, 0}
    local tensor = managed(b)
    local t = tensor.dl_tensor
    assert.are.same({1, 0, 2, 2, 32, 1}, {t.device.device_type, t.device.device_id, t.ndim, t.dtype.code,
      t.dtype.bits,
      t.dtype.lanes})
    assert.are.same({3, 2, 1, 3}, {tonumber(t.shape[0]), tonumber(t.shape[1]), tonumber(t.strides[0]),
      tonumber(t.strides[1])})
    assert.are.equal(0, tonumber(t.byte_offset))
    assert.are.equal(4, ffi.cast("float *", t.data)[3])
    tensor.deleter(tensor)
  end)

  it("knows every dtype there and back", function()
    for _, dtype in ipairs(buf.dtypes) do
      local back = assert(tide.from_dlpack(tide.from({1, 2, 3}, dtype):to_dlpack()))
      assert.are.equal(dtype, back.dtype)
      assert.are.same({1, 2, 3}, back:read():totable())
      back:close()
    end
  end)

  it("keeps the memory after the buffer has closed, and gives it back when deleted", function()
    local b = tide.buf{shape = {1000}, label = "exported"}
    local tensor = managed(b:fill(3))
    b:close()
    assert.are.equal(4000, held "exported")
    assert.are.equal(3, ffi.cast("float *", tensor.dl_tensor.data)[999])
    tensor.deleter(tensor)
    assert.are.equal(0, held "exported")
  end)

  it("that came in is deleted with the last view of it, not before", function()
    local b = tide.buf{shape = {10, 10}, label = "round trip"}
    local back = assert(tide.from_dlpack(b:fill(2):to_dlpack()))
    b:close()
    local row = back[9]
    back:close()
    assert.are.equal(400, held "round trip")
    assert.are.equal(2, row[9])
    row:close()
    assert.are.equal(0, held "round trip")
  end)

  it("may start at an offset, without strides", function()
    local memory, shape = ffi.new("int32_t[6]", 1, 2, 3, 4, 5, 6), ffi.new("int64_t[1]", 4)
    local tensor = ffi.new "DLManagedTensor"
    tensor.dl_tensor.data, tensor.dl_tensor.shape, tensor.dl_tensor.ndim = memory, shape, 1
    tensor.dl_tensor.device.device_type, tensor.dl_tensor.byte_offset = 1, 8
    tensor.dl_tensor.dtype.code, tensor.dl_tensor.dtype.bits, tensor.dl_tensor.dtype.lanes = 0, 32, 1
    local b = assert(tide.from_dlpack(tensor))
    assert.are.same({3, 4, 5, 6}, b:read():totable())
    b:close()
  end)

  it("is refused when tide has no such dtype, device or rank, and is not taken over then", function()
    local memory, shape, strides = ffi.new "float[4]", ffi.new("int64_t[6]", 2, 2, 1, 1, 1, 1),
      ffi.new "int64_t[6]"
    local function tensor(change)
      local t = ffi.new "DLManagedTensor"
      t.dl_tensor.data, t.dl_tensor.shape, t.dl_tensor.ndim = memory, shape, 2
      t.dl_tensor.device.device_type = 1
      t.dl_tensor.dtype.code, t.dl_tensor.dtype.bits, t.dl_tensor.dtype.lanes = 2, 32, 1
      change(t.dl_tensor)
      return t
    end
    local function refused(part, change)
      local t = tensor(change)
      local ok, b, message = pcall(tide.from_dlpack, t)
      assert.is_truthy(not ok or b == nil, part)
      assert.is_truthy(tostring(ok and message or b):find(part, 1, true), tostring(ok and message or b))
    end
    refused("2 lanes", function(t) t.dtype.lanes = 2 end)
    refused("code 2, 64 bits", function(t) t.dtype.bits = 64 end)
    refused("dimensions out of range (got 6", function(t) t.ndim = 6 end)
    refused("unknown kind (got 10", function(t) t.device.device_type = 10 end)
    -- A broadcast has strides of 0, which a view of tide reads as "contiguous": four elements where one is.
    refused("broadcast", function(t) t.strides = strides end)
  end)
end)
