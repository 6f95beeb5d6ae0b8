-- Notes a run of the server. While it was away no worker could renew its lease or take over from others. ARGV: the run, and the layout of a
-- namespace that is used for the first time. Answers the layout that this one has: '' if it is from before layouts had numbers.
write_without_memory()
local run, layout = unpack(ARGV, FIRST)
local before = call('HGET', META, 'run')
if not before then call('HSETNX', META, 'layout', layout) end
if before ~= run then
  call('HSET', META, 'run', run)
  if before then forgive(0) end
end
return call('HGET', META, 'layout') or ''
