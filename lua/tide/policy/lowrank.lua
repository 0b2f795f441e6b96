-- Keep the blocks that attention is predicted to read; let old scores fade.
return tide.policy.scorer {
  name = "lowrank",
  settings = {
    fade = {0.02, "score points a block loses per tick since its last read"},
    sink = {1,    "leading blocks of each sequence that are never given up"},
  },
  -- Write keep[0 .. n-1]: higher is kept longer. Pins, ties and NaN belong to C.
  score = function(c, now, set)
    for i = 0, c.n - 1 do
      if c.index[i] < set.sink then c.keep[i] = math.huge
      else c.keep[i] = c.score[i] - set.fade * (now - c.last_use[i]) end
    end
  end,
}
