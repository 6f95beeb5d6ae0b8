-- Enters workers that are there for one task alone, whichever each claims. ARGV: of each, info and lease.
local tids = {}
for i = FIRST, #ARGV, 2 do
  tids[#tids + 1] = enter_own(ARGV[i], tonumber(ARGV[i + 1]))
end
return answer(tids)
