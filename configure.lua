-- Writes build.ninja: what is built from what, and nothing about this machine.
--   luajit configure.lua                      write build.ninja (after adding, renaming or removing a file)
--   luajit configure.lua --check              exit 1 if build.ninja is not what would be written
--   luajit configure.lua --sanitize --out build/sanitize.ninja      a variant, for ninja -f
-- The build itself calls two more steps: --probe finds compilers and writes one small script for each
-- (honours CC CFLAGS LDFLAGS NVCC CUDA_HOME TIDE_GENCODE TIDE_CUDA=off), --embed-list lists blobs for embed.S.

local cflags = "-std=c11 -O2 -g -fPIC -fvisibility=hidden -fexceptions -fasynchronous-unwind-tables"
  .. " -ffp-contract=off -Wall -Wextra -Wshadow -Wstrict-prototypes -Wvla -Werror=implicit"
local nvflags = "-O3 -std=c++17 --fmad=true -lineinfo -Ikernels"
local simd_levels = {v3 = "-march=x86-64-v3", v4 = "-march=x86-64-v4 -mprefer-vector-width=512"}
local gpu_targets = {"compute_80", "sm_100", "sm_120", "sm_80", "sm_90", "sm_90a"}
local tool_scripts = {"cc", "simd", "link", "cubin", "fatbin"} -- written by the probe into build/toolchain
local gencode = {development = "sm_90a,compute_80", release = table.concat(gpu_targets, ",")}

---------------------------------------------------------------------------------------------------- helpers

local function fail(message, ...)
  io.stderr:write("configure: ", message:format(...), "\n")
  os.exit(1)
end

local function read(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  return text
end

-- Leaves the file alone if it says the same already, so that ninja sees no change.
local function write(path, text)
  if read(path) == text then return false end
  local file = io.open(path, "wb") or fail("%s: cannot be written", path)
  file:write(text)
  file:close()
  return true
end

local function capture(command)
  local pipe = io.popen(command .. " 2>&1")
  local text = pipe:read("*a")
  return text, pipe:close()
end

-- LuaJIT's pipe:close does not tell the exit code everywhere, os.execute does.
local function succeeds(command)
  local code = os.execute(command .. " >/dev/null 2>&1")
  return code == 0 or code == true
end

local function map(list, f)
  local out = {}
  for i, value in ipairs(list) do out[i] = f(value) end
  return out
end

local function concat(...)
  local out = {}
  for _, list in ipairs {...} do
    for _, value in ipairs(list) do out[#out + 1] = value end
  end
  return out
end

local function quote(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

---------------------------------------------------------------------------------------------------- lists

-- Files below a folder by the end of their name, sorted by byte value.
local function find(folder, extension)
  local files = {}
  for path in io.popen("find " .. folder .. " -type f -name '*" .. extension .. "' 2>/dev/null"):lines() do
    files[#files + 1] = path
  end
  table.sort(files)
  return files
end

local function folders(...)
  local found = {}
  for path in io.popen("find " .. table.concat({...}, " ") .. " -type d 2>/dev/null"):lines() do
    found[#found + 1] = path
  end
  table.sort(found)
  return found
end

local function product_of(name)
  if name == "module" then return "module" end
  if name == "main" or name:match("^cli_") then return "program" end
  if name == "lua_host" or name == "policy_lua" or name:match("^lua_") then return "lua" end
  return "tide"
end

local function kernel_names()
  local text = read("kernels/kernels.def") or fail("kernels/kernels.def: not found, run this from the root")
  local names = {}
  for line in text:gmatch("[^\n]+") do
    local name = line:match("^TIDE_KERNEL%(([%w_]+)%)")
    if name then
      for _, extension in ipairs {".h", ".c"} do
        local path = "kernels/" .. name .. extension
        if not read(path) then fail("%s: not found, though kernels.def lists %s", path, name) end
      end
      names[name] = true
    end
  end
  return names
end

local function is_variant_of_a_kernel(stem, kernels)
  while stem do
    if kernels[stem] then return true end
    stem = stem:match("^(.+)_[^_]*$")
  end
  return false
end

-- Every source file belongs to one list; one that belongs to none is an error, not a silent leftover.
local function read_lists()
  local kernels = kernel_names()
  local lists = {tide = {}, lua = {}, module = {}, program = {}, kernels = {}, simd = {}, cuda = {}, spec = {}}
  local function stray(path, want) fail("%s: nobody claims this file (want %s)", path, want) end
  local function add(list, path) table.insert(lists[list], path) end

  for _, path in ipairs(concat(find(".", ".c"), find(".", ".cu"))) do
    path = path:sub(3)
    local folder, stem, extension = path:match("^(.-)/?([^/]+)%.(cu?)$")
    if path:match("^build/") or path:match("^%.") then -- not ours
    elseif folder == "runtime" and extension == "c" then add(product_of(stem), path)
    elseif folder == "spec/embed" and extension == "c" then add("spec", path)
    elseif folder == "kernels" and extension == "cu" then
      if not is_variant_of_a_kernel(stem, kernels) then stray(path, "NAME.cu or NAME_idea.cu, NAME in kernels.def") end
      add("cuda", path)
    elseif folder == "kernels" and kernels[stem] then add("kernels", path)
    elseif folder == "kernels" and kernels[stem:match("^(.+)_simd$") or ""] then add("simd", path)
    elseif folder == "kernels" then stray(path, "NAME.c or NAME_simd.c, NAME in kernels.def")
    else stray(path, "a place in runtime/, kernels/ or spec/embed/")
    end
  end
  for _, list in pairs(lists) do table.sort(list) end
  lists.scripts = concat(find("lua/tide", ".lua"), {"runtime/tide.h"})
  lists.folders = folders("kernels", "runtime", "lua", "spec/embed")
  return lists
end

---------------------------------------------------------------------------------------------------- writer

-- Variables stay: paths of outputs begin with $root.
local function escape(path) return (path:gsub("[ :]", "$%0")) end

local function writer()
  local lines = {}
  local w = {}

  -- One path a line once a statement is long, so that merges of build.ninja stay readable.
  local function statement(head, words)
    local line = head .. (#words > 0 and " " .. table.concat(words, " ") or "")
    if #line > 110 then line = head .. " $\n    " .. table.concat(words, " $\n    ") end
    lines[#lines + 1] = line
  end

  function w.comment(text) lines[#lines + 1] = "\n# " .. text end
  function w.var(name, value, indent) lines[#lines + 1] = (indent or "") .. name .. " = " .. value end

  function w.rule(name, vars)
    lines[#lines + 1] = "rule " .. name
    for _, pair in ipairs(vars) do w.var(pair[1], pair[2], "  ") end
  end

  -- edge: implicit, order, vars (a list of pairs)
  function w.build(outputs, rule, inputs, edge)
    edge = edge or {}
    local words = map(inputs or {}, escape)
    if edge.implicit then words = concat(words, {"|"}, map(edge.implicit, escape)) end
    if edge.order then words = concat(words, {"||"}, map(edge.order, escape)) end
    statement("build " .. table.concat(map(outputs, escape), " ") .. ": " .. rule, words)
    for _, pair in ipairs(edge.vars or {}) do w.var(pair[1], pair[2], "  ") end
  end

  function w.default(target) lines[#lines + 1] = "\ndefault " .. target end

  function w.text() return table.concat(lines, "\n") .. "\n" end
  return w
end

---------------------------------------------------------------------------------------------------- graph

local variants = {
  plain = {out = "build.ninja", root = "build", arguments = "", cflags = "", undefined = "-Wl,-z,defs",
    gpu_targets = gpu_targets},
  -- No device code: the sanitizers see the host only. Shared objects leave the sanitizer's names open.
  sanitize = {out = "build/sanitize.ninja", root = "build/sanitize", arguments = " --sanitize", undefined = "",
    cflags = " -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer",
    gpu_targets = {}},
}

local function write_rules(w, variant)
  local function rule(name, command, ...)
    w.rule(name, concat({{"command", command}, {"description", name .. " $out"}}, {...}))
  end
  local gcc_deps, restat, console = {"deps", "gcc"}, {"restat", "1"}, {"pool", "console"}
  local depfile = {"depfile", "$out.d"}
  w.rule("configure", {{"command", "luajit configure.lua" .. variant.arguments .. " --out $out"},
    {"description", "configure $out"}, {"generator", "1"}, restat})
  w.rule("probe", {{"command", "luajit configure.lua" .. variant.arguments .. " --probe $root"},
    {"description", "probe toolchain"}, restat})
  w.rule("embed_list", {{"command", "luajit configure.lua --embed-list $kind $out $in"},
    {"description", "list $out"}, restat})
  rule("cc", "$tool/cc $cflags $flags -MMD -MF $out.d -c $in -o $out", depfile, gcc_deps)
  rule("simd", "$tool/simd $level $in $out $cflags $flags", depfile, gcc_deps)
  rule("cubin", "$tool/cubin $target $in $out", depfile, gcc_deps)
  rule("fatbin", "$tool/fatbin $out $in")
  rule("ar", "rm -f $out && $${AR:-ar} rcs $out $in")
  rule("link", "$tool/link $cflags $ldflags -o $out $in $libs")
  rule("symlink", "ln -sf $target $out")
  w.rule("run", {{"command", "$run"}, {"description", "$run"}, console})
end

local function compile_edges(w, variant, lists)
  local root = variant.root
  local objects, commands = {}, {}
  local cc = {"$tool/cc"}

  local function object(source, flags, edge)
    local out = root .. "/obj/" .. source:gsub("%.%w+$", (edge and edge.suffix or "") .. ".o")
    edge = edge or {}
    w.build({out}, edge.rule or "cc", {source}, {implicit = edge.implicit or cc,
      order = edge.order, vars = concat({{"flags", flags}}, edge.vars or {})})
    if source:match("%.c$") then commands[#commands + 1] = {source = source, flags = flags} end
    return out
  end

  local runtime_flags = "-I. -Iruntime -Ikernels"
  for _, product in ipairs {"tide", "lua", "module", "program"} do
    objects[product] = map(lists[product], function(source)
      local index = source == "runtime/fatbin.c" and "fatbins.def" or source == "runtime/lua_index.c" and "lua.def"
      if not index then return object(source, runtime_flags) end
      return object(source, runtime_flags .. " -I$root/gen", {implicit = {"$tool/cc", "$root/gen/" .. index}})
    end)
  end
  objects.spec = map(lists.spec, function(source) return object(source, "-Iruntime") end)
  objects.kernels = map(lists.kernels, function(source) return object(source, "-I. -Ikernels") end)
  for _, source in ipairs(lists.simd) do
    for _, level in ipairs {"v3", "v4"} do
      table.insert(objects.kernels, object(source, "-I. -Ikernels -DKERNEL_LEVEL=" .. level,
        {rule = "simd", suffix = "_" .. level, implicit = {"$tool/simd"}, vars = {{"level", level}}}))
    end
  end
  return objects, commands, object
end

-- Device code: one file a target (an empty one for a target that is not wanted), joined into a fatbin.
local function device_edges(w, variant, lists)
  return map(lists.cuda, function(source)
    local stem = "$root/obj/" .. source:gsub("%.cu$", "")
    local parts = map(variant.gpu_targets, function(target)
      local out = stem .. "." .. target
      w.build({out}, "cubin", {source}, {implicit = {"$tool/cubin"}, vars = {{"target", target}}})
      return out
    end)
    w.build({stem .. ".fatbin"}, "fatbin", parts, {implicit = {"$tool/fatbin"}})
    return stem .. ".fatbin"
  end)
end

local function embed_edges(w, object, kind, blobs)
  local list = "$root/gen/" .. kind .. ".def"
  w.build({list}, "embed_list", blobs, {implicit = {"configure.lua"}, vars = {{"kind", kind}}})
  return object("runtime/embed.S", "-I$root/gen -DEMBED_LIST='\"" .. kind .. ".def\"'",
    {suffix = "_" .. kind, implicit = concat({"$tool/cc", list}, blobs)})
end

local function product_edges(w, variant, objects)
  local lib = "$root/lib/"
  local luajit = "-lluajit-5.1"
  local exports = "-Wl,--version-script=runtime/tide.map"

  local function link(out, inputs, ldflags, libs, implicit)
    w.build({out}, "link", inputs, {implicit = concat({"$tool/link"}, implicit or {}),
      vars = {{"ldflags", "-Wl,--as-needed " .. ldflags}, {"libs", libs}}})
  end
  local function shared(name, inputs, ldflags, libs, implicit)
    local file = name .. ".so.0"
    link(lib .. file, inputs, ("-shared -Wl,-soname,%s %s %s %s"):format(file, variant.undefined, exports, ldflags),
      libs, concat({"runtime/tide.map"}, implicit or {}))
    w.build({lib .. name .. ".so"}, "symlink", {}, {implicit = {lib .. file}, vars = {{"target", file}}})
  end

  local archive = {lib .. "libtide.a"}
  local whole = "-Wl,--whole-archive " .. archive[1] .. " -Wl,--no-whole-archive"
  w.build(archive, "ar", objects.tide)
  shared("libtide", {}, "", whole .. " -lm", archive)
  shared("libtide_lua", objects.lua, "-Wl,-rpath,'$$ORIGIN' -L" .. lib, "-ltide -lm " .. luajit, {lib .. "libtide.so"})
  link(lib .. "tide/core.so", concat(objects.lua, objects.module), "-shared " .. exports, whole .. " -lm",
    concat({"runtime/tide.map"}, archive))
  link("$root/tide", concat(objects.lua, objects.module, objects.program), "-rdynamic",
    whole .. " -lm " .. luajit, archive)

  local specs = map(objects.spec, function(input)
    local out = input:gsub("^.*/obj/spec/embed/(.*)%.o$", "$root/spec/%1")
    link(out, {input}, "-Wl,-rpath,'$$ORIGIN/../lib' -L" .. lib, "-ltide_lua -ltide -lm",
      {lib .. "libtide_lua.so", lib .. "libtide.so"})
    return out
  end)
  return concat({lib .. "libtide.so", lib .. "libtide.a", lib .. "libtide_lua.so", lib .. "tide/core.so",
    "$root/tide"}, specs)
end

local function target_edges(w, all)
  w.build({"all"}, "phony", all)
  w.comment("What a person types")
  local function target(name, command, inputs)
    w.build({name}, "run", {}, {implicit = inputs, vars = {{"run", command}}})
  end
  target("test", "luajit scripts/test.lua", {"all"})
  target("test-gpu", "luajit scripts/test.lua gpu", {"all"})
  target("bench", "$root/tide bench", {"all"})
  target("doctor", "$root/tide doctor", {"all"})
  target("lint", "luajit scripts/test.lua lint")
  target("install", "scripts/install", {"all"})
end

local function write_graph(variant)
  local lists = read_lists()
  local w = writer()
  w.comment("Written by configure.lua, do not edit: luajit configure.lua")
  w.var("ninja_required_version", "1.10")
  w.var("builddir", variant.root)
  w.var("root", variant.root)
  w.var("tool", "$root/toolchain")
  w.var("cflags", cflags .. variant.cflags)
  w.var("flags", "")
  w.comment("Rules")
  write_rules(w, variant)
  w.comment("This file, and the one step that looks at the machine: it runs each time and writes only what changed")
  w.build({variant.out}, "configure", {}, {implicit = concat({"configure.lua", "kernels/kernels.def"}, lists.folders)})
  w.build({"always"}, "phony")
  w.build(map(tool_scripts, function(name) return "$tool/" .. name end), "probe", {},
    {implicit = {"always", "configure.lua"}})
  w.comment("Objects")
  local objects, commands, object = compile_edges(w, variant, lists)
  w.comment("Device code and embedded files")
  local fatbins = embed_edges(w, object, "fatbins", device_edges(w, variant, lists))
  objects.tide = concat(objects.tide, objects.kernels, {fatbins})
  objects.lua = concat(objects.lua, {embed_edges(w, object, "lua", lists.scripts)})
  w.comment("Products")
  local all = product_edges(w, variant, objects)
  target_edges(w, all)
  w.default("all")
  return w.text(), commands
end

---------------------------------------------------------------------------------------------------- probe

local function env(name)
  local value = os.getenv(name)
  return value ~= "" and value or nil
end

local function resolve(program)
  local path = capture("command -v " .. quote(program)):match("^(/[^\n]*)\n")
  return path
end

local function identity(path) return (capture("stat -Lc '%n %s %Y' " .. quote(path)):match("^[^\n]*")) end

local function first_line(text) return text:match("[^\n]*error[^\n]*") or text:match("[^\n]+") or "no message" end

-- Compiles a text; answers nil, or the compiler's first complaint.
local function try_compile(compiler, name, text, arguments)
  local path = os.tmpname()
  local source = path .. name
  write(source, text)
  local command = ("%s %s %s -o %s"):format(compiler, quote(source), arguments, quote(path))
  local message = not succeeds(command) and first_line(capture(command))
  os.remove(source)
  os.remove(path)
  return message or nil
end

local function find_luajit()
  if succeeds("pkg-config --exists luajit") then
    return capture("pkg-config --cflags luajit"):match("^[^\n]*"), capture("pkg-config --libs-only-L luajit"):match("^[^\n]*")
  end
  for _, include in ipairs {"/usr/include/luajit-2.1", "/usr/local/include/luajit-2.1"} do
    if read(include .. "/lua.h") then return "-I" .. include, "" end
  end
  fail("lua.h of LuaJIT not found: apt-get install libluajit-5.1-dev")
end

local function find_cc()
  local cc = env("CC") or "cc"
  local path = resolve(cc:match("%S+")) or fail("no C compiler: %s not found, set CC or apt-get install gcc libc6-dev", cc)
  local complaint = try_compile(cc, ".c", "#include <omp.h>\nint main(void) { return omp_get_num_threads() - 1; }\n", "-fopenmp")
  if complaint and try_compile(cc, ".c", "#include <stdio.h>\nint main(void) { return 0; }\n", "") then
    fail("%s does not compile an empty program, apt-get install libc6-dev: %s", cc, complaint)
  elseif complaint then
    fail("%s finds no OpenMP, apt-get install libomp-dev (clang) or libgomp1 (gcc): %s", cc, complaint)
  end
  return cc, path
end

local function find_nvcc()
  if env("TIDE_CUDA") == "off" then return nil, "TIDE_CUDA=off" end
  local places = {env("NVCC") or "", env("CUDA_HOME") and env("CUDA_HOME") .. "/bin/nvcc" or "",
    "/usr/local/cuda/bin/nvcc", "nvcc"}
  for _, place in ipairs(places) do
    local path = place ~= "" and resolve(place)
    if path then return path end
  end
  return nil, "no nvcc"
end

local function wanted_targets()
  local setting = env("TIDE_GENCODE") or "development"
  local targets = {}
  for target in (gencode[setting] or setting):gmatch("[^,%s]+") do
    if not table.concat(gpu_targets, " "):find(target, 1, true) then
      fail("TIDE_GENCODE: unknown target %s (want release, development, or a list of %s)", target, table.concat(gpu_targets, ","))
    end
    targets[#targets + 1] = target
  end
  return targets
end

local script_head = "#!/bin/sh\n# Written by configure.lua --probe. "

local function cc_scripts(root)
  local cc, path = find_cc()
  local include, library = find_luajit()
  local simd = try_compile(cc, ".c", "int main(void) { return 0; }\n", simd_levels.v4) == nil
  local extra = ("%s -fopenmp%s %s"):format(include, simd and "" or " -DKERNEL_NO_SIMD", env("CFLAGS") or "")
  local head = script_head .. identity(path) .. "\n"
  local level = 'case $level in v3) set -- "$@" %s;; v4) set -- "$@" %s;; esac\nexec %s/toolchain/cc -MMD -MF "$out.d" -c "$in" -o "$out" "$@" -O3\n'
  local none = 'exec %s/toolchain/cc -MMD -MF "$out.d" -x c -c /dev/null -o "$out"\n'
  return {
    cc = head .. ('exec %s "$@" %s\n'):format(cc, extra),
    link = head .. ('exec %s "$@" -fopenmp %s %s\n'):format(cc, library, env("LDFLAGS") or ""),
    simd = head .. "level=$1 in=$2 out=$3; shift 3\n"
      .. (simd and level:format(simd_levels.v3, simd_levels.v4, root) or none:format(root)),
  }, cc, extra
end

local function cuda_scripts()
  local nvcc, reason = find_nvcc()
  local targets = wanted_targets()
  local complaint = nvcc and try_compile(quote(nvcc), ".cu", "__global__ void f(void) {}\n", "-cubin")
  if complaint then nvcc, reason = nil, nvcc .. " does not work: " .. complaint end
  local head = script_head .. (nvcc and identity(nvcc) or reason) .. "\n"
  local nothing = ': > "$3"; echo "$3: $2" > "$3.d"\n'
  local cubin, fatbin = head .. nothing, head .. ': > "$1"\n'
  if nvcc then
    cubin = head .. ('case " %s " in *" $1 "*) ;; *) %s exit 0;; esac\n'):format(table.concat(targets, " "), nothing:gsub("\n", ";"))
      .. ('case $1 in\ncompute_*) set -- "$@" -ptx -arch="$1";;\n*) set -- "$@" -cubin -gencode arch=compute_"${1#sm_}",code="$1";;\nesac\n')
      .. ('in=$2 out=$3; shift 3\nexec %s "$@" %s -MMD -MF "$out.d" -o "$out" "$in"\n'):format(quote(nvcc), nvflags)
    fatbin = head .. [[
out=$1; shift
for part; do
  shift
  target=${part##*.}
  [ -s "$part" ] || continue
  case $target in
  sm_*) set -- "$@" --image3=kind=elf,sm="${target#sm_}",file="$part";;
  *) set -- "$@" --image3=kind=ptx,sm="${target#compute_}",file="$part";;
  esac
done
[ $# -gt 0 ] || { : > "$out"; exit 0; }
]] .. ('exec %s --create="$out" -64 "$@"\n'):format(quote(nvcc:match("^.*/") .. "fatbinary"))
  end
  return {cubin = cubin, fatbin = fatbin}, nvcc and table.concat(targets, " ") or reason
end

local function json_string(text) return '"' .. text:gsub('[\\"]', "\\%0") .. '"' end

-- For clangd and the like: the commands with every flag resolved.
local function write_commands(variant, cc, extra, commands)
  local here = capture("pwd"):match("^[^\n]*")
  local entries = map(commands, function(c)
    local command = table.concat({cc, cflags .. variant.cflags, (c.flags:gsub("%$root", variant.root)), extra, "-c", c.source}, " ")
    return ('{"directory": %s, "file": %s, "command": %s}'):format(json_string(here), json_string(c.source), json_string(command))
  end)
  write(variant.root .. "/compile_commands.json", "[\n" .. table.concat(entries, ",\n") .. "\n]\n")
end

-- What the answer depends on; while it stays the same, the compilers are not asked again.
local function probe_key()
  local names = {"CC", "CFLAGS", "LDFLAGS", "NVCC", "CUDA_HOME", "TIDE_GENCODE", "TIDE_CUDA", "PATH"}
  local settings = map(names, function(name) return name .. "=" .. (env(name) or "") end)
  local cc = (env("CC") or "cc"):match("%S+")
  local places = ("$(command -v %s) $(command -v nvcc) /usr/local/cuda/bin/nvcc %s configure.lua build.ninja"):format(
    quote(cc), quote(find_nvcc() or "/"))
  local libraries = "/usr/include/luajit-2.1/lua.h /usr/lib/llvm-*/lib/libomp.so"
  return table.concat(settings, "\n") .. "\n" .. capture("pwd; stat -Lc '%n %s %Y' " .. places .. " " .. libraries)
end

local function probe(variant)
  local tool = variant.root .. "/toolchain"
  local key, complete = probe_key(), true
  for _, name in ipairs(tool_scripts) do complete = complete and read(tool .. "/" .. name) end
  if complete and read(tool .. "/key") == key then return end
  os.execute("mkdir -p " .. tool)
  local scripts, cc, extra = cc_scripts(variant.root)
  local cuda, summary = cuda_scripts()
  for name, text in pairs(cuda) do scripts[name] = text end
  for name, text in pairs(scripts) do
    if write(tool .. "/" .. name, text) then os.execute("chmod +x " .. tool .. "/" .. name) end
  end
  local _, commands = write_graph(variant)
  write_commands(variant, cc, extra, commands)
  print(("configure: C by %s, device code: %s"):format(cc, summary))
  write(tool .. "/key", key)
end

---------------------------------------------------------------------------------------------------- commands

-- One line a blob, symbol and name and path, for embed.S and for the C that lists them.
local function embed_list(kind, out, blobs)
  local lines = map(blobs, function(path)
    local name = path:match("([^/]+)%.fatbin$") or path:match("([^/]+%.h)$")
      or path:gsub("^lua/", ""):gsub("%.lua$", ""):gsub("/init$", ""):gsub("/", ".")
    local symbol = (kind == "fatbins" and "tide_fatbin_" or "tide_text_") .. name:gsub("%W", "_")
    return ('TIDE_EMBED(%s, "%s", "%s")\n'):format(symbol, name, path)
  end)
  write(out, table.concat(lines))
end

local function check(variant, out)
  if read(out) == write_graph(variant) then return end
  fail("%s is stale: run luajit configure.lua and commit what it writes", out)
end

local function main(arguments)
  local variant, action, out = variants.plain, "write", nil
  local i = 1
  while arguments[i] do
    local option = arguments[i]
    if option == "--sanitize" then variant = variants.sanitize
    elseif option == "--check" then action = "check"
    elseif option == "--out" then i, out = i + 1, arguments[i + 1] or fail("--out: wants a file")
    elseif option == "--probe" then return probe(variant)
    elseif option == "--embed-list" then
      return embed_list(arguments[i + 1], arguments[i + 2], {unpack(arguments, i + 3)})
    else fail("unknown option %s (want --check, --sanitize, --out FILE, --probe, --embed-list)", option)
    end
    i = i + 1
  end
  out = out or variant.out
  if action == "check" then return check(variant, out) end
  os.execute("mkdir -p " .. quote(out:match("^(.*)/[^/]*$") or "."))
  if write(out, (write_graph(variant))) then print("configure: wrote " .. out) end
end

main(arg)
