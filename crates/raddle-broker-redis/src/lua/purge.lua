-- Deletes finished tasks and their records: those past their retention, or the named ones. ARGV:
-- maximum, and the names of tasks if given.
write_without_memory()
local function gone(tid)
  return call('HEXISTS', SPEC, tid) == 0
end
local expired = {}
if #ARGV > FIRST then
  for i = FIRST + 1, #ARGV do
    if call('HEXISTS', DONE, ARGV[i]) == 1 then expired[#expired + 1] = ARGV[i] end
  end
else
  expired = call('ZRANGEBYSCORE', EXPIRY, '-inf', int(now_ms), 'LIMIT', 0, ARGV[FIRST])
end
if #expired == 0 then return answer(0) end
for _, tid in ipairs(expired) do
  leave_batch(tid)
  local done = call('HGET', DONE, tid)
  local state, attempts, service = string.match(done, '^(%d+) %S+ %S+ (%d+) %S+ %S+ %S+ (%d)')
  if service == '0' then count(state, -1) end
  call('HDEL', SPEC, tid)
  call('HDEL', DONE, tid)
  call('ZREM', EXPIRY, tid)
  call('SREM', DEAD, tid)
  call('ZREM', EXPIRING, tid)
  call('DEL', PREFIX .. 'progress:' .. tid)
  for attempt = 1, tonumber(attempts) do
    for stream = 0, 1 do
      local field = tid .. ':' .. attempt .. ':' .. stream
      call('HDEL', OUTPUT, field, field .. ':cut')
      call('DEL', PREFIX .. 'out:' .. field)
    end
  end
  call('ZREMRANGEBYLEX', PORTS, '[' .. tid .. '.', '(' .. tid .. '/')
  call('ZREMRANGEBYLEX', WORDS, '[' .. tid .. ':', '(' .. tid .. ';')
end
-- Trim the index of tasks and the log to the oldest remaining task. Workers do not count: one that
-- lives for a year must not keep the log of a year.
local function is_worker(tid)
  local record = call('HGET', TASK, tid)
  return record and is_service(fields(record))
end
local from, oldest = '-', nil
repeat
  local entries = call('XRANGE', BORN, from, '+', 'COUNT', 100)
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
      call('XDEL', BORN, id)
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
