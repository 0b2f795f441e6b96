--- Captures: queries, keys and values of a model on a prompt, one layer, as a safetensors file.
--
-- Tensors: q [rows, q_heads, head_dim], the last rows of the prompt; k, v [tokens, kv_heads, head_dim].
-- Optional: text (u8) and text_end (i32 [tokens], where each token ends in it). Metadata, optional: first_row
-- (position of q[0]), question, answer, needle_first, needle_last (tokens of the sentence with the answer),
-- answer_row (the row that predicts the telling word).
-- @module tide.capture

local tide = require "tide"

local capture = {}
local methods = {}
local class = {__index = methods}

local function shape_text(b) return "[" .. table.concat(b.shape, ", ") .. "]" end

-- nil, or what is wrong with the tensors.
local function complaint(file)
  for _, name in ipairs {"q", "k", "v"} do
    if not file:has(name) then
      return ("no tensor %s (want q, k and v; it has %s)"):format(name, table.concat(file:names(), " "))
    end
  end
  local q, k, v = file.q, file.k, file.v
  for name, b in pairs {q = q, k = k, v = v} do
    if b.n_dims ~= 3 then
      return ("%s has the wrong shape (got %s, want three dimensions)"):format(name, shape_text(b))
    end
  end
  if shape_text(k) ~= shape_text(v) then
    return ("k and v differ in shape (got %s and %s)"):format(shape_text(k), shape_text(v))
  end
  if q.shape[3] ~= k.shape[3] or q.shape[2] % k.shape[2] ~= 0 then
    return ("q and k do not go together (got %s and %s, want one head_dim, and heads of q a multiple of k's)")
      :format(shape_text(q), shape_text(k))
  end
  if q.shape[1] > k.shape[1] then
    return ("more rows in q than tokens in k (got %d and %d)"):format(q.shape[1], k.shape[1])
  end
end

local function needle_of(c)
  local first, last, row = c:number "needle_first", c:number "needle_last", c:number "answer_row"
  if not (first and last and row) then return nil end
  local size = c.block_size
  return {
    first_token = first, last_token = last, position = row, row = row - c.first_row,
    first_block = math.floor(first / size), last_block = math.floor(last / size),
  }
end

--- Opens a capture on the default context's device.
-- @tparam string path
-- @tparam[opt=16] number block_size tokens a block
-- @treturn[1] capture q, k, v, rows, tokens, first_row, block_size, n_blocks (whole ones), needle, meta
-- @treturn[2] nil refused
-- @treturn[2] string message
-- @usage local c = assert(require("tide.capture").open "spec/data/harbour.safetensors")
function capture.open(path, block_size)
  local file, message = tide.load(path)
  if not file then return nil, message end
  local wrong = complaint(file)
  if wrong then return nil, ("%s: not a capture: %s"):format(path, wrong) end
  local c = setmetatable({path = path, file = file, meta = file.meta, block_size = block_size or 16}, class)
  c.q, c.k, c.v = file.q, file.k, file.v
  c.rows, c.tokens = c.q.shape[1], c.k.shape[1]
  c.q_heads, c.kv_heads, c.head_dim = c.q.shape[2], c.k.shape[2], c.k.shape[3]
  c.first_row = c:number "first_row" or c.tokens - c.rows
  c.n_blocks = math.floor(c.tokens / c.block_size)
  if c.first_row < 0 or c.first_row + c.rows > c.tokens then
    return nil, ("%s: not a capture: first_row %d and %d rows end beyond %d tokens")
      :format(path, c.first_row, c.rows, c.tokens)
  end
  c.needle = needle_of(c)
  return c
end

--- A number of the metadata, or nil.
function methods:number(key) return self.meta[key] and tonumber(self.meta[key]) or nil end

--- The last rows of q, or all when there are fewer.
-- @treturn buf view [n, q_heads, head_dim]
-- @treturn number index of its first row in q
function methods:last_rows(n)
  local first = math.max(0, self.rows - n)
  return self.q:slice(0, first, self.rows - first), first
end

local function read_text(c)
  if not (c.file:has "text" and c.file:has "text_end") then return end
  local bytes, n = assert(c.file:get("text", "cpu")):bytes()
  c.text = require("ffi").string(bytes, n)
  c.text_end = assert(assert(c.file:get("text_end", "cpu")):read())
end

--- The text of tokens first .. last, or nil when the capture has none.
-- @usage print(c:text_of(c.needle.first_token, c.needle.last_token))
function methods:text_of(first, last)
  if not self.text then read_text(self) end
  if not self.text then return nil end
  local from = first > 0 and self.text_end[first - 1] or 0
  return self.text:sub(from + 1, self.text_end[math.min(last, self.tokens - 1)])
end

--- The text of a block.
function methods:block_text(block)
  return self:text_of(block * self.block_size, (block + 1) * self.block_size - 1)
end

return capture
