-- Keep what attention is predicted to read, and what it reads whatever the prediction says: the first block
-- of a sequence, where it rests when it looks for nothing, and the last few, from which the text runs on.
return tide.policy.scorer {
  name = "keep_mass",
  settings = {
    sink   = {1, "leading blocks of a sequence that stay"},
    recent = {5, "blocks that stay because they are young, by ticks since their arrival"},
  },
  -- score is the predicted share of attention. What stays whatever it is leaves last, so it is infinite.
  score = function(c, now, set)
    for i = 0, c.n - 1 do
      local always = c.index[i] < set.sink or now - c.born[i] <= set.recent
      c.keep[i] = always and math.huge or c.score[i]
    end
  end,
}
