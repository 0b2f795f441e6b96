std = "luajit"
max_line_length = 110
exclude_files = {"build/"}

files["spec"] = {std = "luajit+busted"}
files["spec/helper.lua"] = {globals = {"os.exit"}}

-- A policy sees its sandbox and nothing else.
files["lua/tide/policy"] = {
  std = {
    read_globals = {
      "tide", "math", "string", "table", "bit", "assert", "error", "ipairs", "next", "pairs", "pcall",
      "print", "select", "tonumber", "tostring", "type", "unpack",
    },
  },
}
