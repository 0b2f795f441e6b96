-- Cases of mark: bytes, so every variant is exact.

return function(t)
  -- o: rows, marks, ids (nil: the first n), and what differs from the plain case
  local function case(family, name, o)
    local stride, n, marked = o.stride or o.marks, o.n or #o.ids, {}
    for i = 1, n do marked[o.ids and o.ids[i] or i - 1] = true end
    return {family = family, name = name, arrays = {
      ids = o.ids and t.values("i32", o.ids),
      marks = t.output("u8", o.rows * stride, function(i) return i % stride < o.marks
        and marked[i % stride] end),
    }, args = {stride = stride, n_rows = o.rows, n_marks = o.marks, n = n, value = 1}}
  end

  local cases = {
    case("regular", "a list in two rows", {rows = 2, marks = 100, ids = {3, 99, 0, 3}}),
    case("regular", "all of a row", {rows = 1, marks = 1000, n = 1000}),
    case("odd", "the first 37 of 41, 43 apart", {rows = 3, marks = 41, stride = 43, n = 37}),
    case("empty", "no ids", {rows = 2, marks = 10, n = 0}),
    case("empty", "no rows", {rows = 0, marks = 10, n = 3}),
    case("all-invalid", "ids out of range are left out", {rows = 2, marks = 4, ids = {-1, 4, 2147483647,
      -2147483648, 2}}),
  }
  cases[#cases + 1] = {family = "huge", name = "a row beyond 2^31", make = function()
    local at = 2 ^ 31 + 64
    return {family = "huge", name = "", arrays = {
      ids = t.values("i32", {0, 1, 2}), marks = t.sparse("u8", at + 3, {[0] = 3, [at] = 3}),
    }, args = {stride = at, n_rows = 2, n_marks = 3, n = 3, value = 1}}
  end}

  return {cases = cases, bounds = function() return {} end, ordered = function() return false end}
end
