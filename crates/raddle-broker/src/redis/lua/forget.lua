-- Forgets answers that nobody will ask for again, a portion of them. ARGV: where to go on, and for how many seconds they are kept. Answers
-- where to go on after this.
local found = call('HSCAN', META, ARGV[FIRST], 'COUNT', '500')
local old, oldest = {}, sec - tonumber(ARGV[FIRST + 1])
for i = 1, #found[2], 2 do
  local name, said_at = found[2][i], string.match(found[2][i + 1], '^%d+ (%d+) ')
  -- Only the names of answers have a colon.
  if said_at and string.find(name, ':', 1, true) and tonumber(said_at) < oldest then old[#old + 1] = name end
end
if #old > 0 then call_many('HDEL', META, old) end
return found[1]
