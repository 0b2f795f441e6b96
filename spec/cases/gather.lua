-- Cases of gather: bytes, so every variant is exact.

return function(t)
  -- o: n (or ids), rows of src, bytes a row, and what differs from the plain case
  local function case(family, name, o)
    local stride = o.stride or o.bytes
    return {family = family, name = name, arrays = {
      src = t.random("u8", math.max(o.rows * stride, 1), 61, nil, 256), ids = t.values("i32", o.ids),
      table = o.table and t.values("i32", o.table),
      dst = t.output("u8", #o.ids * stride, function(i) return i % stride < o.bytes end),
    }, args = {dst_stride = stride, src_stride = stride, row_bytes = o.bytes, n = #o.ids, n_src = o.rows,
      n_table = o.table and #o.table or 0,
      page_size = o.page or 0}}
  end

  local cases = {
    case("regular", "rows of 256 bytes", {ids = {3, 0, 7, 7, 1}, rows = 8, bytes = 256}),
    case("regular", "through a page table", {ids = {0, 1, 5, 4, 11}, rows = 24, bytes = 64, table = {4, 0,
      2}, page = 4}),
    case("odd", "rows of 7 bytes, 11 apart", {ids = {2, 0, 1}, rows = 3, bytes = 7, stride = 11}),
    case("odd", "one byte", {ids = {0}, rows = 1, bytes = 1}),
    case("odd", "rows of 4097 bytes", {ids = {1, 1, 0}, rows = 2, bytes = 4097}),
    case("empty", "no ids", {ids = {}, rows = 3, bytes = 16}),
    case("empty", "rows of no bytes", {ids = {1, 2}, rows = 3, bytes = 0, stride = 16}),
    case("empty", "a source without rows", {ids = {0, 1}, rows = 0, bytes = 16}),
    case("all-invalid", "ids out of range give zeros", {ids = {-1, 4, 2147483647, -2147483648}, rows = 4,
      bytes = 48}),
    case("all-invalid", "pages out of range give zeros", {ids = {-1, 12, 0, 4, 8}, rows = 8, bytes = 48,
      table = {-1, 7, 2147483647}, page = 4}),
  }
  cases[#cases + 1] = {family = "huge", name = "a row beyond 2^32 bytes", make = function()
    local at = 70000000 * 64
    return {family = "huge", name = "", arrays = {
      src = t.sparse("u8", at + 64, {[0] = t.random("u8", 64, 62, nil, 256), [at] = t.random("u8", 64, 63,
        nil, 256)}),
      ids = t.values("i32", {70000000, 0}), dst = t.output("u8", 128),
    }, args = {dst_stride = 64, src_stride = 64, row_bytes = 64, n = 2, n_src = 70000001}}
  end}

  return {cases = cases, bounds = function() return {} end, ordered = function() return false end}
end
