-- Cases of sum.

local EPS = 2 ^ -23

return function(t)
  local function case(family, name, o)
    return {family = family, name = name, arrays = {
      x = t.random("f32", o.n, 81, o.place), out = t.output("f32", o.pieces),
    }, args = {n = o.n, piece = o.piece, n_pieces = o.pieces}}
  end

  local s = t.special.f32
  local cases = {
    case("regular", "8 pieces of 4096", {n = 32768, piece = 4096, pieces = 8}),
    case("odd", "a last piece of 1, and one past the end", {n = 2 * 1236 + 1, piece = 1236, pieces = 4}),
    case("odd", "pieces of 4", {n = 18, piece = 4, pieces = 5}),
    case("empty", "no pieces", {n = 100, piece = 4, pieces = 0}),
    case("empty", "no elements", {n = 0, piece = 8, pieces = 3}),
    case("all-invalid", "NaN and infinities", {n = 4000, piece = 1000, pieces = 4, place = {[5] = s.nan,
      [1500] = s.inf, [2100] = s.minus_inf, [2101] = s.inf}}),
  }
  -- More pieces than a dimension of a grid used to hold; a sum reads all, so the array stays small.
  cases[#cases + 1] = case("huge", "70,001 pieces", {n = 280003, piece = 4, pieces = 70001})

  -- A piece's sums round, each within EPS of the sizes added so far.
  local function bounds(c)
    local piece = math.min(c.args.piece, c.args.n)
    local bound = EPS * piece * piece * t.largest(c.arrays.x)
    return {out = function() return bound end}
  end

  return {cases = cases, bounds = bounds, ordered = function() return false end}
end
