-- Tail-first LRU: the block whose last read is oldest leaves first; of blocks read at the same tick, the one
-- furthest down its sequence, since it is of use only to those who want all before it too.

local function leaves_first(c, a, b)
  if c.last_use[a] ~= c.last_use[b] then return c.last_use[a] < c.last_use[b] end
  if c.index[a] ~= c.index[b] then return c.index[a] > c.index[b] end
  return a < b
end

-- Lets heap[at] sink until the heap 0 .. n-1 has at its root what leaves last.
local function sink(c, heap, n, at)
  local moved, child = heap[at], 2 * at + 1
  while child < n do
    if child + 1 < n and leaves_first(c, heap[child], heap[child + 1]) then child = child + 1 end
    if not leaves_first(c, moved, heap[child]) then break end
    heap[at], at, child = heap[child], child, 2 * child + 1
  end
  heap[at] = moved
end

-- Proposes: slots to c.out, first to leave first. (A policy that writes keep is shorter: lowrank.lua.)
return {
  name = "lru",
  victims = function(c, _, _, _, _, n)
    local heap = {}
    for i = 0, n - 1 do heap[i] = i end
    for at = math.floor(n / 2) - 1, 0, -1 do sink(c, heap, n, at) end
    for i = n, c.n - 1 do
      if leaves_first(c, i, heap[0]) then
        heap[0] = i
        sink(c, heap, n, 0)
      end
    end
    for last = n - 1, 0, -1 do
      c.out[last] = c.slot[heap[0]]
      heap[0] = heap[last]
      sink(c, heap, last, 0)
    end
    return n
  end,
}
