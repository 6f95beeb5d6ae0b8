-- Pauses a queue, or resumes it. ARGV: queue, and 'paused' or ''. Returns whether that changed
-- anything.
local queue, paused = ARGV[FIRST], ARGV[FIRST + 1] == 'paused'
if paused then return answer(call('SADD', PAUSED_QUEUES, queue)) end
if call('SREM', PAUSED_QUEUES, queue) == 0 then return answer(0) end
for _, partition in ipairs(call('SMEMBERS', PARTITIONS)) do
  if queue_of(partition) == '|' .. queue then
    local ready = call('ZLEXCOUNT', READY, '[' .. partition .. ' ', '(' .. partition .. '!')
    if ready > 0 then wake('wake:partition:' .. partition, ready) end
  end
end
-- Workers of a single task wait for events.
notify('log')
return answer(1)
