-- Deletes finished tasks and their records: those past their retention, or the named ones. ARGV:
-- maximum, and the names of tasks if given.
write_without_memory()
local function gone(tid)
  return call('HEXISTS', SPECS, tid) == 0
end
local expired = {}
if #ARGV > FIRST then
  for i = FIRST + 1, #ARGV do
    if call('HEXISTS', FINISHED, ARGV[i]) == 1 then expired[#expired + 1] = ARGV[i] end
  end
else
  expired = call('ZRANGEBYSCORE', RETENTION, '-inf', int(now_ms), 'LIMIT', 0, ARGV[FIRST])
end
if #expired == 0 then return answer(0) end
local queues = {}
for _, tid in ipairs(expired) do
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
-- Trim the index of tasks and the log to the oldest remaining task. Workers do not count: one that
-- lives for a year must not keep the log of a year.
local function is_worker(tid)
  local record = call('HGET', RECORDS, tid)
  return record and is_service(fields(record))
end
local from, oldest = '-', nil
repeat
  local entries = call('XRANGE', CREATED, from, '+', 'COUNT', 100)
  for i = 1, #entries do
    local id, n = entries[i][1], tonumber(entries[i][2][2])
    local s, c = string.match(id, '^(%d+)-(%d+)$')
    local left = nil
    for j = 0, n - 1 do
      local tid = digits(id_after(tonumber(s), tonumber(c), j))
      if not gone(tid) then
        left = tid
        break
      end
    end
    if not left then
      call('XDEL', CREATED, id)
    elseif not is_worker(left) then
      oldest = id
      break
    end
    from = '(' .. id
  end
until oldest or #entries < 100
if oldest then
  call('XTRIM', LOG, 'MINID', oldest)
else
  call('XTRIM', LOG, 'MAXLEN', 0)
end
return answer(#expired)
