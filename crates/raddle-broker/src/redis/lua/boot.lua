-- The server has been started anew: while it was away nobody could renew a lease, and nobody could take over. ARGV: the run of the server.
local run = ARGV[FIRST]
local before = call('HGET', META, 'run')
if before ~= run then
  call('HSET', META, 'run', run)
  if before then forgive(0) end
end
return {}
