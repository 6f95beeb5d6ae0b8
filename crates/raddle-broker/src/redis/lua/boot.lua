-- The server has been started anew: while it was away nobody could renew a lease, and nobody could take over. So every lease goes on where
-- it was at the last beat of any worker, but for no longer than one lease. ARGV: the run of the server, the length of a lease in milliseconds.
local run = ARGV[FIRST]
local before = call('HGET', META, 'run')
if before ~= run then
  call('HSET', META, 'run', run)
  if before then
    local last = tonumber(call('HGET', META, 'beat') or 0)
    local workers = call('ZRANGE', LEASE, 0, -1, 'WITHSCORES')
    for i = 1, #workers, 2 do
      local lease = tonumber(workers[i + 1])
      local moved = math.min(lease + now_ms - last, now_ms + tonumber(ARGV[FIRST + 1]))
      if lease < moved then call('ZADD', LEASE, int(moved), workers[i]) end
    end
  end
end
return {}
