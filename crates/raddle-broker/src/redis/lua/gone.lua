-- The workers whose lease has run out, and what they have. ARGV: the margin; a worker that is held to be gone without it, or ''.
local gone = call('ZRANGEBYSCORE', LEASE, '-inf', '(' .. int(now_ms - tonumber(ARGV[FIRST])))
local late = ARGV[FIRST + 1]
if late ~= '' then
  local lease = call('ZSCORE', LEASE, late)
  if lease and tonumber(lease) < now_ms then
    local known = false
    for i = 1, #gone do
      known = known or gone[i] == late
    end
    if not known then gone[#gone + 1] = late end
  end
end
local reply = {}
for i = 1, #gone do
  local held = call('ZRANGEBYLEX', OWNED, '[' .. gone[i] .. ':', '(' .. gone[i] .. ';')
  for j = 1, #held do
    held[j] = string.sub(held[j], #gone[i] + 2)
  end
  reply[i] = { gone[i], held }
end
return reply
