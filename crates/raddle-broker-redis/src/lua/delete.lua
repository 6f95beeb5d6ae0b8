-- Deletes finished tasks, with their output, messages and counts. Their events stay until the log
-- is trimmed.
local function delete_tasks(tids)
  local queues = {}
  for _, tid in ipairs(tids) do
    leave_batch(tid)
    local done, spec = call('HGET', FINISHED, tid), call('HGET', SPECS, tid)
    local state, dead, attempts, service = string.match(done, '^(%d+) (%S+) %S+ (%d+) %S+ %S+ %S+ (%d)')
    if service == '0' then
      local partition = head(spec)
      call('HINCRBY', COUNTERS, state .. queue_of(partition), -1)
      if dead == '1' then call('HINCRBY', COUNTERS, 'D' .. queue_of(partition), -1) end
      queues[queue_of(partition)] = true
      call('ZREM', UNSUCCESSFUL, state .. ' ' .. tid)
    end
    call('HDEL', SPECS, tid)
    call('HDEL', FINISHED, tid)
    call('ZREM', RETENTION, tid)
    call('ZREM', DEAD_LETTERS, tid)
    call('ZREM', EXPIRIES, tid)
    call('DEL', PREFIX .. 'progress:' .. tid)
    for attempt = 1, tonumber(attempts) do
      for stream = 0, 1 do
        local field = tid .. ':' .. attempt .. ':' .. stream
        call('HDEL', OUTPUT, field, field .. ':cut')
        call('DEL', PREFIX .. 'live_output:' .. field)
      end
    end
    call('ZREMRANGEBYLEX', TASK_MESSAGES, '[' .. tid .. '.', '(' .. tid .. '/')
    call('ZREMRANGEBYLEX', COMMANDS, '[' .. tid .. ':', '(' .. tid .. ';')
  end
  -- A queue without tasks needs no counters.
  for queue in pairs(queues) do
    for status in string.gmatch('rdpsx34567D', '.') do
      if call('HGET', COUNTERS, status .. queue) == '0' then call('HDEL', COUNTERS, status .. queue) end
    end
  end
end
