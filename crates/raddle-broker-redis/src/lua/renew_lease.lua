-- Renews a lease, and returns whether other leases have expired. ARGV: worker, ttl, heartbeat,
-- takeover margin.
write_without_memory()
local worker = ARGV[FIRST]
local alive = has_lease(worker)
if alive then
  renew_lease(worker, tonumber(ARGV[FIRST + 1]))
  call('HSET', HEARTBEATS, worker, ARGV[FIRST + 2])
end
local gone = call('ZCOUNT', LEASES, '-inf', '(' .. int(now_ms - tonumber(ARGV[FIRST + 3])))
return { alive and 'alive' or 'expired', gone }
