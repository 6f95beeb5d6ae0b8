-- Renews a lease, and says whether others have run out. ARGV: worker, lease, what it tells of itself, the margin before others take over.
local worker = ARGV[FIRST]
local lease = call('ZSCORE', LEASE, worker)
local alive = lease and tonumber(lease) >= now_ms
if alive then
  call('ZADD', LEASE, int(now_ms + tonumber(ARGV[FIRST + 1])), worker)
  call('HSET', BEATS, worker, ARGV[FIRST + 2])
  call('HSET', META, 'beat', int(now_ms))
end
local gone = call('ZCOUNT', LEASE, '-inf', '(' .. int(now_ms - tonumber(ARGV[FIRST + 3])))
return { alive and 'alive' or 'late', gone }
