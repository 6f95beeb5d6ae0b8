-- Records the run id of the server, and extends leases after a restart, because no worker could
-- renew one meanwhile. ARGV: run id, layout for a new namespace. Returns the layout of the
-- namespace, '' if it has none.
write_without_memory()
local run, layout = unpack(ARGV, FIRST)
local before = call('HGET', META, 'run')
if not before then call('HSETNX', META, 'layout', layout) end
if before ~= run then
  call('HSET', META, 'run', run)
  if before then extend_leases(0) end
end
return call('HGET', META, 'layout') or ''
