-- Writes build.ninja: what is built from what, and nothing about this machine.
--   luajit configure.lua                      write build.ninja (after adding, renaming or removing a file)
--   luajit configure.lua --check              exit 1 if build.ninja is not what would be written
--   luajit configure.lua --sanitize           write build/sanitize.ninja, a variant for ninja -f
-- The build itself calls two more steps. --probe finds the compilers and writes one small script for each; it
-- honours CC CFLAGS LDFLAGS NVCC CUDA_HOME TIDE_GENCODE TIDE_CUDA=off. --embed-list lists blobs for embed.S.

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
  pipe:close()
  return text
end

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

-- What find(1) finds, sorted by byte value.
local function find(arguments)
  local paths = {}
  for path in io.popen("find " .. arguments .. " 2>/dev/null"):lines() do paths[#paths + 1] = path end
  table.sort(paths)
  return paths
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

local function is_of_a_kernel(stem, kernels)
  while stem do
    if kernels[stem] then return true end
    stem = stem:match("^(.+)_[^_]*$")
  end
  return false
end

-- Every source file belongs to one list; one that belongs to none is an error, not a silent leftover.
local function read_lists()
  local kernels = kernel_names()
  local lists = {tide = {}, lua = {}, module = {}, program = {}}
  for _, name in ipairs {"kernels", "simd", "cuda", "spec"} do lists[name] = {} end
  local function stray(path, want) fail("%s: nobody claims this file (want %s)", path, want) end
  local function add(list, path) table.insert(lists[list], path) end

  local others = "-path build -prune -o -path scripts/peers -prune" -- peers are built by their own scripts
  for _, path in ipairs(find("* " .. others .. " -o -name '*.c' -print -o -name '*.cu' -print")) do
    local folder, stem, extension = path:match("^(.-)/?([^/]+)%.(cu?)$")
    if folder == "runtime" and extension == "c" then add(product_of(stem), path)
    elseif folder == "spec/embed" and extension == "c" then add("spec", path)
    elseif folder == "kernels" and extension == "cu" then
      if not is_of_a_kernel(stem, kernels) then stray(path, "NAME.cu or NAME_idea.cu of kernels.def") end
      add("cuda", path)
    elseif folder == "kernels" and kernels[stem] then add("kernels", path)
    elseif folder == "kernels" and kernels[stem:match("^(.+)_simd$") or ""] then add("simd", path)
    elseif folder == "kernels" then stray(path, "NAME.c or NAME_simd.c, NAME in kernels.def")
    else stray(path, "a place in runtime/, kernels/ or spec/embed/")
    end
  end
  for _, list in pairs(lists) do table.sort(list) end
  lists.scripts = concat(find("lua/tide -name '*.lua'"), {"runtime/tide.h"})
  for _, path in ipairs(lists.kernels) do table.insert(lists.scripts, (path:gsub("%.c$", ".h"))) end
  lists.folders = find("kernels runtime lua spec/embed -type d")
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
  sanitize = {out = "build/sanitize.ninja", root = "build/sanitize", arguments = " --sanitize",
    cflags = " -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer",
    undefined = "", gpu_targets = {}},
}

local function write_rules(w, variant)
  local function rule(name, command, ...)
    w.rule(name, concat({{"command", command}, {"description", name .. " $out"}}, {...}))
  end
  local gcc_deps, restat, console = {"deps", "gcc"}, {"restat", "1"}, {"pool", "console"}
  local depfile = {"depfile", "$out.d"}
  w.rule("configure", {{"command", "luajit configure.lua" .. variant.arguments .. " --out $out"},
    {"description", "configure $out"}, {"generator", "1"}, restat})
  local no_luajit = "echo luajit not found: apt-get install luajit; exit 1"
  w.rule("probe", {{"command", "command -v luajit >/dev/null || { " .. no_luajit .. "; }; " ..
    "luajit configure.lua" .. variant.arguments .. " --probe"},
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

local list_read_by = {["runtime/fatbin.c"] = "fatbins.def", ["runtime/lua_index.c"] = "lua.def"}

local function compile_edges(w, lists)
  local objects, commands = {}, {}
  local cc = {"$tool/cc"}

  local function object(source, flags, edge)
    local out = "$root/obj/" .. source:gsub("%.%w+$", (edge and edge.suffix or "") .. ".o")
    edge = edge or {}
    w.build({out}, edge.rule or "cc", {source}, {implicit = edge.implicit or cc,
      order = edge.order, vars = concat({{"flags", flags}}, edge.vars or {})})
    if source:match("%.c$") then commands[#commands + 1] = {source = source, flags = flags} end
    return out
  end

  local runtime_flags = "-I. -Iruntime -Ikernels"
  for _, product in ipairs {"tide", "lua", "module", "program"} do
    objects[product] = map(lists[product], function(source)
      local index = list_read_by[source]
      if not index then return object(source, runtime_flags) end
      return object(source, runtime_flags .. " -I$root/gen", {implicit = {"$tool/cc", "$root/gen/" .. index}})
    end)
  end
  objects.spec = map(lists.spec, function(source) return object(source, "-Iruntime") end)
  objects.kernels = map(lists.kernels, function(source) return object(source, "-I. -Ikernels") end)
  for _, source in ipairs(lists.simd) do
    for _, level in ipairs {"v3", "v4"} do
      table.insert(objects.kernels, object(source, "-I. -Ikernels -DKERNEL_LEVEL=" .. level, {rule = "simd",
        suffix = "_" .. level, implicit = {"$tool/simd", "$tool/cc"}, vars = {{"level", level}}}))
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
  w.build({list}, "embed_list", blobs,
    {implicit = {"configure.lua"}, order = {"$tool/cc"}, vars = {{"kind", kind}}})
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
    local flags = ("-shared -Wl,-soname,%s %s %s %s"):format(file, variant.undefined, exports, ldflags)
    link(lib .. file, inputs, flags, libs, concat({"runtime/tide.map"}, implicit or {}))
    w.build({lib .. name .. ".so"}, "symlink", {}, {implicit = {lib .. file}, vars = {{"target", file}}})
  end

  local archive = {lib .. "libtide.a"}
  local whole = "-Wl,--whole-archive " .. archive[1] .. " -Wl,--no-whole-archive"
  w.build(archive, "ar", objects.tide)
  shared("libtide", {}, "", whole .. " -lm", archive)
  shared("libtide_lua", objects.lua, "-Wl,-rpath,'$$ORIGIN' -L" .. lib, "-ltide -lm " .. luajit,
    {lib .. "libtide.so"})
  link(lib .. "tide/core.so", concat(objects.lua, objects.module), "-shared -Wl,-z,nodelete " .. exports,
    whole .. " -lm", concat({"runtime/tide.map"}, archive))
  link("$root/tide", concat(objects.lua, objects.module, objects.program), "-rdynamic",
    whole .. " -lm " .. luajit, archive)

  -- libtide reaches libtide_lua by a weak reference, which is no reason for a linker to keep a library.
  local specs = map(objects.spec, function(input)
    local out = input:gsub("^.*/obj/spec/embed/(.*)%.o$", "$root/spec/%1")
    local policies = out:match("/no_lua$") and "" or "-Wl,--no-as-needed -ltide_lua -Wl,--as-needed "
    link(out, {input}, "-Wl,-rpath,'$$ORIGIN/../lib' -L" .. lib, policies .. "-ltide -lm",
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
  w.comment("This file, and the one step that looks at the machine (always run, writes what changed)")
  w.build({variant.out}, "configure", {},
    {implicit = concat({"configure.lua", "kernels/kernels.def"}, lists.folders)})
  w.build({"always"}, "phony")
  w.build(map(tool_scripts, function(name) return "$tool/" .. name end), "probe", {},
    {implicit = {"always", "configure.lua"}})
  w.comment("Objects")
  local objects, commands, object = compile_edges(w, lists)
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

-- First line that the command prints.
local function ask(command) return capture(command):match("^[^\n]*") end

local function resolve(program)
  local path = ask("command -v " .. quote(program))
  return path:match("^/") and path or nil
end

local function identity(path) return ask("stat -Lc '%n %s %Y' " .. quote(path)) end

-- Compiles a text; answers nil, or the compiler's first complaint.
local function complaint_of(compiler, extension, text, arguments)
  local path = os.tmpname()
  local source = path .. extension
  write(source, text)
  local command = ("%s %s %s -o %s"):format(compiler, quote(source), arguments, quote(path))
  local message
  if not succeeds(command) then
    local output = capture(command)
    message = output:match("[^\n]*error[^\n]*") or output:match("[^\n]+") or "no message"
  end
  os.remove(source)
  os.remove(path)
  return message
end

local function find_luajit()
  if succeeds("pkg-config --exists luajit") then
    return ask("pkg-config --cflags luajit"), ask("pkg-config --libs-only-L luajit")
  end
  for _, include in ipairs {"/usr/include/luajit-2.1", "/usr/local/include/luajit-2.1"} do
    if read(include .. "/lua.h") then return "-I" .. include, "" end
  end
  fail("lua.h of LuaJIT not found: apt-get install libluajit-5.1-dev")
end

local function find_cc()
  local cc = env("CC") or "cc"
  local path = resolve(cc:match("%S+")) or fail("no C compiler %s: apt-get install gcc, or set CC", cc)
  local complaint = complaint_of(cc, ".c", "#include <stdio.h>\nint main(void) { return !stdin; }\n", "")
  if complaint then fail("%s does not work (apt-get install libc6-dev): %s", cc, complaint) end
  return cc, path
end

local function nvcc_path()
  local home = env("CUDA_HOME")
  local places = {env("NVCC") or false, home and home .. "/bin/nvcc", "/usr/local/cuda/bin/nvcc", "nvcc"}
  for i = 1, 4 do
    local path = places[i] and resolve(places[i])
    if path then return path end
  end
end

-- An nvcc that works, or nil and the reason.
local function find_nvcc()
  if env("TIDE_CUDA") == "off" then return nil, "TIDE_CUDA=off" end
  local path = nvcc_path()
  if not path then return nil, "no nvcc" end
  local complaint = complaint_of(quote(path), ".cu", "__global__ void f(void) {}\n", "-cubin")
  if complaint then return nil, path .. " does not work: " .. complaint end
  return path
end

local function wanted_targets()
  local setting = env("TIDE_GENCODE") or "development"
  local known, wanted = {}, {}
  for _, target in ipairs(gpu_targets) do known[target] = true end
  for target in (gencode[setting] or setting):gmatch("[^,%s]+") do
    if not known[target] then
      fail("TIDE_GENCODE: unknown target (got %s, want release, development, or a list of %s)", target,
        table.concat(gpu_targets, ","))
    end
    wanted[#wanted + 1] = target
  end
  return table.concat(wanted, " ")
end

local c_templates = {
  cc = 'exec @cc@ "$@" @extra@\n',
  link = 'exec @cc@ "$@" -pthread @ldflags@\n',
}

local simd_templates = {
  simd = [[
level=$1 in=$2 out=$3; shift 3
case $level in
v3) set -- "$@" @three@ -O3;;
v4) set -- "$@" @four@ -O3;;
esac
exec @tool@/cc "$@" -MMD -MF "$out.d" -c "$in" -o "$out"
]],
}

local no_simd_templates = {simd = 'exec @tool@/cc -MMD -MF "$3.d" -x c -c /dev/null -o "$3"\n'}

-- Both write an empty file where there is nothing to compile: no nvcc, or a target that is not wanted.
local cuda_templates = {
  cubin = [[
target=$1 in=$2 out=$3
case " @targets@ " in
*" $target "*) ;;
*) : > "$out"; echo "$out: $in" > "$out.d"; exit 0;;
esac
case $target in
compute_*) set -- -ptx -arch="$target";;
*) set -- -cubin -gencode arch=compute_"${target#sm_}",code="$target";;
esac
exec @nvcc@ "$@" @flags@ -MMD -MF "$out.d" -o "$out" "$in"
]],
  fatbin = [[
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
exec @fatbinary@ --create="$out" -64 --compress-all "$@"
]],
}

local function add_scripts(scripts, templates, origin, values)
  for name, template in pairs(templates) do
    local body = template:gsub("@(%l+)@", values)
    scripts[name] = "#!/bin/sh\n# Written by configure.lua --probe: " .. origin .. "\n" .. body
  end
end

local function add_c_scripts(scripts, tool)
  local cc, path = find_cc()
  local include, library = find_luajit()
  local simd = not complaint_of(cc, ".c", "int main(void) { return 0; }\n", simd_levels.v4)
  local extra = ("%s -pthread%s %s"):format(include, simd and "" or " -DKERNEL_NO_SIMD", env("CFLAGS") or "")
  add_scripts(scripts, c_templates, identity(path), {cc = cc, extra = extra,
    ldflags = library .. " " .. (env("LDFLAGS") or "")})
  add_scripts(scripts, simd and simd_templates or no_simd_templates, identity(path),
    {tool = tool, three = simd_levels.v3, four = simd_levels.v4})
  return cc, extra
end

local function add_cuda_scripts(scripts)
  local nvcc, reason = find_nvcc()
  local targets = nvcc and wanted_targets() or ""
  local program = nvcc or "/nvcc" -- without one no target is wanted, so it is never called
  add_scripts(scripts, cuda_templates, nvcc and identity(nvcc) or reason, {targets = targets, flags = nvflags,
    nvcc = quote(program), fatbinary = quote(program:match("^.*/") .. "fatbinary")})
  return nvcc and targets or "none, " .. reason
end

local function json_string(text) return '"' .. text:gsub('[\\"]', "\\%0") .. '"' end

-- For clangd and the like: the commands with every flag resolved.
local function write_commands(variant, cc, extra, commands)
  local here = ask("pwd")
  local entries = map(commands, function(c)
    local flags = cflags .. variant.cflags .. " " .. c.flags:gsub("%$root", variant.root)
    local command = table.concat({cc, flags, extra, "-c", c.source}, " ")
    return ('{"directory": %s, "file": %s, "command": %s}'):format(
      json_string(here), json_string(c.source), json_string(command))
  end)
  write(variant.root .. "/compile_commands.json", "[\n" .. table.concat(entries, ",\n") .. "\n]\n")
end

-- What the answer depends on; while it stays the same, the compilers are not asked again.
local function probe_key()
  local names = {"CC", "CFLAGS", "LDFLAGS", "NVCC", "CUDA_HOME", "TIDE_GENCODE", "TIDE_CUDA", "PATH"}
  local settings = map(names, function(name) return name .. "=" .. (env(name) or "") end)
  local cc = resolve((env("CC") or "cc"):match("%S+")) or ""
  local files = table.concat(map({cc, nvcc_path() or "", "configure.lua", "build.ninja"}, quote), " ")
    .. " /usr/include/luajit-2.1/lua.h"
  return table.concat(settings, "\n") .. "\n" .. capture("pwd; stat -Lc '%n %s %Y' " .. files)
end

local function probe(variant)
  local tool = variant.root .. "/toolchain"
  local key, complete = probe_key(), true
  for _, name in ipairs(tool_scripts) do complete = complete and read(tool .. "/" .. name) end
  if complete and read(tool .. "/key") == key then return end
  os.execute("mkdir -p " .. tool)
  local scripts = {}
  local cc, extra = add_c_scripts(scripts, tool)
  local targets = add_cuda_scripts(scripts)
  for name, text in pairs(scripts) do
    if write(tool .. "/" .. name, text) then os.execute("chmod +x " .. tool .. "/" .. name) end
  end
  local _, commands = write_graph(variant)
  write_commands(variant, cc, extra, commands)
  if variant == variants.plain then print(("configure: C by %s, device code: %s"):format(cc, targets)) end
  write(tool .. "/key", key)
end

---------------------------------------------------------------------------------------------------- commands

-- One line a blob, symbol and name and path, for embed.S and for the C that lists them.
local function embed_list(kind, out, blobs)
  local lines = map(blobs, function(path)
    local name = path:match("([^/]+)%.fatbin$") or path:match("^runtime/(.+%.h)$")
      or path:match("^kernels/.+%.h$")
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
