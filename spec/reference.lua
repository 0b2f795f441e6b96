--- The table of kept mass on real prompts that was computed elsewhere, and how to hold a row against it.

local reference = {}

-- Our ids of compare.list -> the table's names.
local names = {
  ["oracle"] = "oracle (true mass)", ["keys-max"] = "max dot exact keys", ["recent"] = "recent + sink only",
  ["random-32-max"] = "low-rank r=32", ["random-16-max"] = "low-rank r=16",
  ["random-32-mass"] = "low-rank mass r=32", ["random-16-mass"] = "low-rank mass r=16",
  ["calibrated-32-mass"] = "calibrated r=32 PCA mass", ["calibrated-16-mass"] = "calibrated r=16 PCA mass",
  ["calibrated-8-mass"] = "calibrated r=8 PCA mass",
  ["query-aware-16-mass"] = "calibrated r=16 query-aware mass",
  ["minmax-max"] = "quest max", ["minmax-mass"] = "quest mass", ["mean-mass"] = "mean key mass",
}

local rows

local function fields_of(line)
  local fields = {}
  for field in (line .. "\t"):gmatch "([^\t]*)\t" do fields[#fields + 1] = field end
  return fields
end

--- Reads the table; skips the running test where it is missing.
function reference.need(helper)
  local path = helper.need_shared "captures/reference.tsv"
  rows = {}
  for line in io.lines(path) do
    local capture, name, kept_5, kept_10, kept_20, rank = unpack(fields_of(line))
    rows[capture .. "\t" .. name] = {kept_5 = tonumber(kept_5), kept_10 = tonumber(kept_10),
      kept_20 = tonumber(kept_20), rank = tonumber(rank)}
  end
end

--- Asserts that a row of --json lies within bound of the table's.
function reference.assert_near(capture, row, bound)
  local want = rows[capture .. "\t" .. names[row.id]]
  for _, share in ipairs {"kept_5", "kept_10", "kept_20"} do
    local gap = math.abs(want[share] - row[share])
    if gap > bound then
      error(("%s, %s: %s is %.4f, the reference says %.4f (bound %g)"):format(capture, row.id, share,
        row[share], want[share], bound), 2)
    end
  end
end

--- The table's random rows come from another generator: two means of five seeds differ by this much or less.
-- A seed's figures scatter by 0.02 at rank 32 and by 0.03 at rank 16.
function reference.random_bound(id) return id:match "%-16%-" and 0.04 or 0.03 end

--- The rank of the answer's block in the table, where it has one number.
function reference.rank(capture, id) return rows[capture .. "\t" .. names[id]].rank end

return reference
