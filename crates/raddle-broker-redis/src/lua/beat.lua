-- Renews a lease, and says whether others have run out. ARGV: worker, lease, what it tells of itself, the margin before others take over.
write_without_memory()
local worker = ARGV[FIRST]
local alive = has_lease(worker)
if alive then
  lease_out(worker, tonumber(ARGV[FIRST + 1]))
  call('HSET', BEATS, worker, ARGV[FIRST + 2])
end
local gone = call('ZCOUNT', LEASE, '-inf', '(' .. int(now_ms - tonumber(ARGV[FIRST + 3])))
return { alive and 'alive' or 'late', gone }
