-- Deletes finished tasks and their records: those past their retention, or the named ones. ARGV:
-- maximum; the queue of the audit trail, how many of its messages and how many operations that have
-- ended are kept; and the names of tasks if given.
write_without_memory()
local function gone(tid)
  return call('HEXISTS', SPECS, tid) == 0
end
local expired = {}
local NAMED = FIRST + 4
if #ARGV >= NAMED then
  for i = NAMED, #ARGV do
    if call('HEXISTS', FINISHED, ARGV[i]) == 1 then expired[#expired + 1] = ARGV[i] end
  end
else
  expired = call('ZRANGEBYSCORE', RETENTION, '-inf', int(now_ms), 'LIMIT', 0, ARGV[FIRST])
end
local audit, audit_kept, operations_kept = ARGV[FIRST + 1], tonumber(ARGV[FIRST + 2]), tonumber(ARGV[FIRST + 3])
call('ZREMRANGEBYRANK', audit, 0, int(-audit_kept - 1))
if call('HLEN', OPERATIONS) > operations_kept then
  local ids = call('HKEYS', OPERATIONS)
  table.sort(ids)
  for i = 1, #ids - operations_kept do
    local operation = call('HGET', OPERATIONS, ids[i])
    if string.find(operation, '"state":"completed"', 1, true) or string.find(operation, '"state":"cancelled"', 1, true) then
      call('HDEL', OPERATIONS, ids[i])
    end
  end
end
if #expired == 0 then return answer(0) end
delete_tasks(expired)
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
