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
local parsed = {}
for i = 1, n do
  if records[i] then
    parsed[i] = { string.match(records[i], OF_RECORD) }
    if #parsed[i] == 0 then error('RADDLE a record cannot be read: ' .. records[i]) end
  end
end
local reply, done, gone, owned, expiry, kept, keys = {}, {}, {}, {}, {}, {}, {}
local began, ended, order, entries = {}, {}, {}, {}
local any_commands = call('ZCARD', COMMANDS) > 0
-- The records and first arguments of the attempts that are completed.
local completed, arguments = {}, {}
local left, reached = { s = counts_of('s'), x = counts_of('x') }, counts_of(COMPLETED)
local seen, k = {}, 0
for i = 1, n do
  local a = FIRST + 1 + (i - 1) * EACH
  local tid, attempt, f = tids[i], ARGV[a + 1], parsed[i]
  local is_latest = f and not seen[tid] and f[2] == attempt and f[5] == ARGV[a + 2] and left[f[1]] and f[4] ~= '-'
  if is_latest and has_flag(f[6], CHAINS) then
    seen[tid] = true
    reply[i] = 'chained'
  elseif is_latest then
    seen[tid] = true
    local status, _, _, partition, owner, _, ttl, _, name, key = unpack(f)
    if not ended[owner] then
      ended[owner], began[owner] = {}, {}
      order[#order + 1] = owner
    end
    local attempt_key = tid .. ':' .. attempt
    if status == 's' then table.insert(began[owner], attempt_key) end
    table.insert(ended[owner], attempt_key)
    left[status][partition] = (left[status][partition] or 0) - 1
    reached[partition] = (reached[partition] or 0) + 1
    local of, ran = outcomes_of(name), ARGV[a + 4]
    of[COMPLETED] = (of[COMPLETED] or 0) + 1
    if ran ~= '' then of[ran] = (of[ran] or 0) + 1 end
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
    completed[k], arguments[k] = f, a
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
  entries[owner] = { s = began_entry and ',' .. began_entry .. ',' .. ended_entry, x = ',' .. ended_entry }
end
for i = 1, k do
  local f, tid = completed[i], gone[i]
  local events, added = logged[tid] and take_logged(tid, f[8]) or f[8], entries[f[5]][f[1]]
  if #events > KEPT_EVENTS then
    events, added = add_events(events, string.sub(added, 2)), ''
  end
  done[2 * i - 1], done[2 * i] = tid, COMPLETED .. ' 0 ' .. f[5] .. ' ' .. f[2] .. ' ' .. f[3] .. ' ' .. finished_at .. ' 0 ' .. events .. added .. '\n' .. ARGV[arguments[i] + 3]
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
