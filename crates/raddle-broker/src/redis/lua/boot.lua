-- The server has been started anew: while it was away nobody could renew a lease, and nobody could take over. So every worker that was
-- registered then gets the time of one lease to come back. ARGV: the run of the server, that time in milliseconds.
local run = ARGV[FIRST]
local before = call('HGET', META, 'run')
if before ~= run then
  call('HSET', META, 'run', run)
  if before then
    local workers = call('ZRANGE', LEASE, 0, -1, 'WITHSCORES')
    for i = 1, #workers, 2 do
      local until_ms = now_ms + tonumber(ARGV[FIRST + 1])
      if tonumber(workers[i + 1]) < until_ms then call('ZADD', LEASE, int(until_ms), workers[i]) end
    end
  end
end
return {}
