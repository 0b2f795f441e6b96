-- The runner counts: busted alone calls a run good that os.exit ended or that ran nothing.
local helper = require "spec.helper"

describe("the runner #build", function()
  local root

  before_each(function()
    root = helper.run("mktemp -d"):match("%S+")
    helper.run(("mkdir -p %s/spec/embed %s/scripts && cp spec/helper.lua spec/report.lua %s/spec"):format(
      root, root, root))
    helper.run(("cp scripts/test.lua %s/scripts && cp .busted %s"):format(root, root))
  end)

  after_each(function() helper.run("rm -rf " .. root) end)

  -- Runs one section over a spec file of this text; answers the output, its last line, and the exit code.
  local function run(text, section)
    if text then
      local file = assert(io.open(root .. "/spec/a_spec.lua", "w"))
      file:write(text)
      file:close()
    end
    local output, code = helper.run(("cd %s && luajit scripts/test.lua %s"):format(root, section or "specs"))
    return output, output:match("([^\n]*)\n*$"), code
  end

  it("counts what passed, failed and was skipped, and prints reasons", function()
    local output, last, code = run [[
      local helper = require "spec.helper"
      describe("a thing", function()
        it("works", function() assert.is_true(true) end)
        it("breaks", function() assert.are.equal(1, 2) end)
        it("waits", function() helper.skip("no such device") end)
        pending("is planned")
      end)]]
    assert.are.equal("1 passed, 1 failed, 2 skipped", last)
    assert.are.equal(1, code)
    assert.is_truthy(output:find("FAIL a thing breaks", 1, true), output)
    assert.is_truthy(output:find("skip a thing waits: no such device", 1, true), output)
  end)

  it("is content with what passes", function()
    local _, last, code = run 'it("works", function() assert.is_true(true) end)'
    assert.are.equal("1 passed, 0 failed, 0 skipped", last)
    assert.are.equal(0, code)
  end)

  it("fails when there is no spec file", function()
    local output, last, code = run(nil)
    assert.is_truthy(last:find("0 passed, %d+ failed"), output)
    assert.are.equal(1, code)
  end)

  it("fails when no test ran", function()
    local output, _, code = run 'it("is excluded #slow", function() assert.is_true(true) end)'
    assert.is_truthy(output:find("no test ran", 1, true), output)
    assert.are.equal(1, code)
  end)

  it("lets a spec not call os.exit", function()
    local output, last = run 'it("leaves", function() os.exit(0) end)'
    assert.are.equal("0 passed, 2 failed, 0 skipped", last)
    assert.is_truthy(output:find("os.exit called in a spec", 1, true), output)
  end)

  -- exit code 0, no summary, and the tests that had not run are forgotten.
  it("fails when a spec ends the process with exit code 0, and names the test", function()
    local output, _, code = run [[
      local ffi = require "ffi"
      ffi.cdef "void exit(int);"
      it("works", function() assert.is_true(true) end)
      it("leaves", function() ffi.C.exit(0) end)]]
    assert.is_truthy(output:find("ended with exit code 0 in: leaves", 1, true), output)
    assert.are.equal(1, code)
  end)

  it("fails when a spec crashes, and names the test", function()
    local output, _, code = run [[
      local ffi = require "ffi"
      it("crashes", function() ffi.cast("int *", 0)[0] = 1 end)]]
    assert.is_truthy(output:find("ended with exit code 139 in: crashes", 1, true), output)
    assert.are.equal(1, code)
  end)

  it("fails when a file does not load, and when a setup does not", function()
    local output, _, code = run "this is not Lua"
    assert.is_truthy(output:find("spec/a_spec.lua:1:", 1, true), output)
    assert.are.equal(1, code)
    output, _, code = run [[
      describe("a thing", function()
        setup(function() error("no ground to stand on") end)
        it("works", function() assert.is_true(true) end)
      end)
      it("stands alone", function() assert.is_true(true) end)]]
    assert.is_truthy(output:find("no ground to stand on", 1, true), output)
    assert.are.equal(1, code)
  end)

  it("runs what is tagged fork in a process of its own", function()
    local text = 'it("is alone #fork", function() assert.is_true(true) end)'
    local _, last = run(text, "fork")
    assert.are.equal("1 passed, 0 failed, 0 skipped", last)
    local output = run(text, "specs")
    assert.is_truthy(output:find("no test ran", 1, true), output)
  end)

  it("refuses a skip where the device is", function()
    local output, _, code = run([[
      it("computes #gpu", function() assert.is_true(true) end)
      it("waits #gpu", function() require "spec.helper".skip("no such device") end)]], "gpu")
    assert.is_truthy(output:find("1 skipped, none may be here", 1, true), output)
    assert.are.equal(1, code)
  end)

  it("refuses an unknown section", function()
    local output, _, code = run(nil, "specks")
    assert.is_truthy(output:find("unknown section specks (want lint,", 1, true), output)
    assert.are.equal(2, code)
  end)
end)
