-- Completes successful attempts that have chained nothing, which need no decision. ARGV: maximum
-- size of an output stream, then for each attempt nine arguments: task, attempt, owner, report,
-- how long it ran as `count_outcome` expects it or '', and for each of the two streams a kind ('' nothing, 'whole' complete output, 'rest' to be
-- appended) and bytes. An attempt that has chained tasks is left unchanged and reported as
-- 'chained'.
write_without_memory()
local cap = ARGV[FIRST]
local EACH = 9
local n = (#ARGV - FIRST) / EACH
local tids = {}
for i = 1, n do
  tids[i] = ARGV[FIRST + 1 + (i - 1) * EACH]
end
-- Fields of a record: status, attempt, failures and losses, partition, owner, flags, ttl, entries
-- in the log, name, unique key.
local OF_RECORD = '^(%S) (%S+) (%S+ %S+) (%S+) (%S+) %S+ %S+ (%S+) %S+ (%S+) %S+ (%S+) (%S+) (.*)$'
local finished_at = int(now_us)
local records = call_many('HMGET', RECORDS, tids)
-- Check all before anything is written: on an error the caller completes each alone.
for i = 1, n do
  if records[i] and not string.match(records[i], OF_RECORD) then error('RADDLE a record cannot be read: ' .. records[i]) end
end
local reply, done, gone, owned, expiry, kept, keys = {}, {}, {}, {}, {}, {}, {}
local began, ended, order = {}, {}, {}
local reports, began_now, owners, entries = {}, {}, {}, {}
local any_commands = call('ZCARD', COMMANDS) > 0
local seen = {}
local k, heads, events_before = 0, {}, {}
for i = 1, n do
  local a = FIRST + 1 + (i - 1) * EACH
  local tid, attempt = tids[i], ARGV[a + 1]
  local status, latest, counters, partition, owner, flags, ttl, events, name, key
  if records[i] and not seen[tid] then
    status, latest, counters, partition, owner, flags, ttl, events, name, key = string.match(records[i], OF_RECORD)
  end
  local is_latest = latest == attempt and owner == ARGV[a + 2] and (status == 's' or status == 'x') and partition ~= '-'
  if is_latest and has_flag(flags, CHAINS) then
    seen[tid] = true
    reply[i] = 'chained'
  elseif is_latest then
    seen[tid] = true
    if not ended[owner] then
      ended[owner], began[owner] = {}, {}
      order[#order + 1] = owner
    end
    local attempt_key = tid .. ':' .. attempt
    if status == 's' then table.insert(began[owner], attempt_key) end
    table.insert(ended[owner], attempt_key)
    count(status, partition, -1)
    count(COMPLETED, partition, 1)
    count_outcome(name, COMPLETED)
    if ARGV[a + 4] ~= '' then count_outcome(name, ARGV[a + 4]) end
    for stream = 0, 1 do
      local kind, bytes = ARGV[a + 5 + stream * 2], ARGV[a + 6 + stream * 2]
      if kind == 'whole' then
        kept[#kept + 1] = attempt_key .. ':' .. stream
        kept[#kept + 1] = bytes
      elseif kind == 'rest' then
        append_output(attempt_key .. ':' .. stream, bytes, cap)
      end
    end
    k = k + 1
    heads[k] = COMPLETED .. ' 0 ' .. owner .. ' ' .. attempt .. ' ' .. counters .. ' ' .. finished_at .. ' 0 '
    events_before[k], reports[k], began_now[k], owners[k] = take_logged(tid, events), ARGV[a + 3], status == 's', owner
    gone[k], owned[k] = tid, owner .. ':' .. tid
    expiry[2 * k - 1], expiry[2 * k] = int(now_ms + tonumber(ttl)), tid
    if key ~= '' then keys[#keys + 1] = key end
    if any_commands then
      call('ZREMRANGEBYLEX', COMMANDS, '[' .. tid .. ':', '(' .. tid .. ';')
    end
    reply[i] = 'done'
  else
    refuse(tid, attempt)
    reply[i] = 'stale'
  end
end
for i = 1, #order do
  local owner = order[i]
  local _, _, began_entry = event(RUNNING, owner, began[owner])
  local _, _, ended_entry = event(COMPLETED, owner, ended[owner])
  entries[owner] = { began_entry, ended_entry }
end
for i = 1, k do
  local of = entries[owners[i]]
  local events = began_now[i] and add_events(events_before[i], of[1]) or events_before[i]
  done[2 * i - 1], done[2 * i] = gone[i], heads[i] .. add_events(events, of[2]) .. '\n' .. reports[i]
end
call_many('HSET', FINISHED, done)
call_many('HSET', OUTPUT, kept)
call_many('HDEL', RECORDS, gone)
call_many('ZREM', OWNED, owned)
call_many('ZADD', RETENTION, expiry)
call_many('HDEL', UNIQUE_KEYS, keys)
for i = 1, #order do
  remove_ephemeral(order[i])
end
return answer(reply)
