-- The driver's types and entries are written down in runtime/cuda_api.*, so that tide builds without CUDA.
-- Where there is a cuda.h, a compiler compares: every size, offset, number and signature.

local helper = require "spec.helper"

-- {ours, cuda.h's}
local numbers = {
  {"CUDA_OUT_OF_MEMORY", "CUDA_ERROR_OUT_OF_MEMORY"},
  {"CUDA_NO_DEVICE", "CUDA_ERROR_NO_DEVICE"},
  {"CUDA_NO_BINARY", "CUDA_ERROR_NO_BINARY_FOR_GPU"},
  {"CUDA_NOT_READY", "CUDA_ERROR_NOT_READY"},
  {"CUDA_PEER_ENABLED", "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
  {"CUDA_N_PROCESSORS", "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT"},
  {"CUDA_LEVEL_MAJOR", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"},
  {"CUDA_LEVEL_MINOR", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR"},
  {"CUDA_SMEM_BYTES", "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"},
  {"CUDA_STATIC_SMEM", "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES"},
  {"CUDA_PTX_VERSION", "CU_FUNC_ATTRIBUTE_PTX_VERSION"},
  {"CUDA_MAX_DYNAMIC_SMEM", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"},
  {"CUDA_LARGE_CLUSTER", "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"},
  {"CUDA_HOST_PORTABLE", "CU_MEMHOSTALLOC_PORTABLE"},
  {"CUDA_STREAM_NON_BLOCKING", "CU_STREAM_NON_BLOCKING"},
  {"CUDA_EVENT_NO_TIMING", "CU_EVENT_DISABLE_TIMING"},
  {"CUDA_CAPTURE_THREAD_LOCAL", "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"},
  {"CUDA_CAPTURE_RELAXED", "CU_STREAM_CAPTURE_MODE_RELAXED"},
  {"CUDA_CLUSTER", "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"},
  {"CUDA_PROGRAMMATIC", "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"},
}

local types = {
  {"cu_result", "CUresult"}, {"cu_device", "CUdevice"}, {"cu_device_attribute", "CUdevice_attribute"},
  {"cu_function_attribute", "CUfunction_attribute"}, {"cu_capture_mode", "CUstreamCaptureMode"},
  {"cu_pointer", "CUdeviceptr"}, {"cu_context", "CUcontext"}, {"cu_module", "CUmodule"},
  {"cu_function", "CUfunction"}, {"cu_stream", "CUstream"}, {"cu_event", "CUevent"}, {"cu_graph", "CUgraph"},
  {"cu_graph_exec", "CUgraphExec"}, {"cu_launch_attribute", "CUlaunchAttribute"},
  {"cu_launch_config", "CUlaunchConfig"},
}

local fields = {
  {"cu_launch_attribute", "CUlaunchAttribute", {{"id", "id"}, {"value", "value"},
    {"value.cluster[0]", "value.clusterDim.x"}, {"value.cluster[1]", "value.clusterDim.y"},
    {"value.cluster[2]", "value.clusterDim.z"},
    {"value.programmatic", "value.programmaticStreamSerializationAllowed"}}},
  {"cu_launch_config", "CUlaunchConfig", {{"grid[0]", "gridDimX"}, {"grid[1]", "gridDimY"},
    {"grid[2]", "gridDimZ"}, {"block[0]", "blockDimX"}, {"block[1]", "blockDimY"},
    {"block[2]", "blockDimZ"}, {"smem_bytes", "sharedMemBytes"}, {"stream", "hStream"},
    {"attributes", "attrs"}, {"n_attributes", "numAttrs"}}},
}

local function cuda_include()
  for _, home in ipairs {os.getenv("CUDA_HOME") or "/usr/local/cuda", "/usr"} do
    local file = io.open(home .. "/include/cuda.h")
    if file then
      file:close()
      return home .. "/include"
    end
  end
  helper.skip("no cuda.h here (CUDA_HOME names its folder)")
end

-- The text of a C file that compiles where the facts hold; extra goes to its end.
local function comparison(extra)
  local lines = {'#include "cuda_api.h"', "#include <cuda.h>"}
  local function add(format, ...) lines[#lines + 1] = format:format(...) end
  for _, n in ipairs(numbers) do add('_Static_assert((int)%s == (int)%s, "%s");', n[1], n[2], n[1]) end
  for _, t in ipairs(types) do add('_Static_assert(sizeof(%s) == sizeof(%s), "%s");', t[1], t[2], t[1]) end
  for _, s in ipairs(fields) do
    for _, f in ipairs(s[3]) do
      add('_Static_assert(offsetof(%s, %s) == offsetof(%s, %s), "%s");', s[1], f[1], s[2], f[2], f[1])
    end
  end
  for _, t in ipairs(types) do add("#define %s %s", t[1], t[2]) end
  add("#define CUDA_ENTRY(name, parameters) CUresult (*check_##name) parameters = name;")
  add('#include "cuda_api.def"')
  add("%s", extra or "")
  return table.concat(lines, "\n") .. "\n"
end

local function compile(text)
  local source = os.tmpname() .. ".c"
  local file = assert(io.open(source, "wb"))
  file:write(text)
  file:close()
  local output, code = helper.run(("%s -std=c11 -Werror -Iruntime -isystem %s -c %s -o /dev/null"):format(
    os.getenv("CC") or "cc", cuda_include(), source))
  os.remove(source)
  return code == 0, output
end

describe("the driver's facts", function()
  it("agree with cuda.h", function()
    local ok, output = compile(comparison())
    assert(ok, output)
  end)

  it("would be found wrong by the same comparison", function()
    for _, wrong in ipairs {
      '_Static_assert((int)CUDA_NOT_READY == (int)CUDA_ERROR_NO_DEVICE, "number");',
      "CUDA_ENTRY(cuEventQuery, (cu_stream stream, int more))",
    } do
      local ok, output = compile(comparison(wrong))
      assert.is_false(ok, wrong)
      assert.truthy(output:find("error", 1, true))
    end
  end)

  it("compare every number, and every type, that cuda_api.h has", function()
    local compared = {}
    for _, list in ipairs {numbers, types} do
      for _, pair in ipairs(list) do compared[pair[1]] = true end
    end
    local text = helper.read("runtime/cuda_api.h")
    local n = 0
    for name in text:gmatch("\n  (CUDA_[%u_]+) = ") do
      n = n + 1
      assert(compared[name], name .. " is not compared")
    end
    for name in text:gsub("typedef struct.-\n}", "typedef"):gmatch("[ *](cu_[%l_]+)[,;]") do
      n = n + 1
      assert(compared[name], name .. " is not compared")
    end
    assert.equal(#numbers + #types, n)
  end)
end)
