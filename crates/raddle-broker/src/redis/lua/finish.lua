-- Ends attempts that went well: nothing is left to decide. KEYS: where output is kept, and the streams of the partitions that chained tasks are
-- in. ARGV: the most bytes that are kept of one stream of output, and for each attempt eight arguments: task, attempt, report; twice (standard
-- output and error) the kind of what is added to it ('' nothing, 'h' all of it is here, a number: the end of what is under that key) and the
-- bytes; and what there is of what it has chained, as the caller read it: from that the caller knows the partitions. An attempt that has
-- chained something else is left as it is, and answered with that.
local cap = tonumber(ARGV[FIRST])
local EACH = 8
local n = (#ARGV - FIRST) / EACH
local tids = {}
for i = 1, n do
  tids[i] = ARGV[FIRST + 1 + (i - 1) * EACH]
end
-- Of a record: place, attempt, failures and losses, partition, owner, flags, ttl, unique key.
local OF_RECORD = '^(%S) (%S+) (%S+ %S+) (%S+) (%S+) %S+ %S+ (%S+) %S+ (%S+) (.*)$'
local finished_at = int(now_us)
local records = call_many('HMGET', TASK, tids)
-- Before anything is written: who asks is then told that nothing was, and asks again for each alone.
for i = 1, n do
  if records[i] and not string.match(records[i], OF_RECORD) then error('RADDLE a record cannot be read: ' .. records[i]) end
end
local reply, done, gone, owned, expiry, kept, keys = {}, {}, {}, {}, {}, {}, {}
local began, ended, order, chains = {}, {}, {}, {}
local any_words = call('ZCARD', WORDS) > 0
local seen = {}
local running, k = 0, 0
for i = 1, n do
  local a = FIRST + 1 + (i - 1) * EACH
  local tid, attempt = tids[i], ARGV[a + 1]
  local place, latest, tally, part, owner, flags, ttl, key
  if records[i] and not seen[tid] then
    place, latest, tally, part, owner, flags, ttl, key = string.match(records[i], OF_RECORD)
  end
  local is_latest = latest == attempt and (place == 's' or place == 'x') and part ~= '-'
  local chains_more = is_latest and floor(tonumber(flags) / 2) % 2 == 1
  if chains_more and call('HGET', CHAINED, tid) ~= ARGV[a + 7] then
    seen[tid] = true
    reply[i] = 'chained'
  elseif is_latest then
    seen[tid] = true
    if chains_more then chains[#chains + 1] = tid end
    if not ended[owner] then
      ended[owner], began[owner] = {}, {}
      order[#order + 1] = owner
    end
    local told = tid .. ':' .. attempt
    if place == 's' then
      table.insert(began[owner], told)
    else
      running = running + 1
    end
    table.insert(ended[owner], told)
    for stream = 0, 1 do
      local kind, bytes = ARGV[a + 3 + stream * 2], ARGV[a + 4 + stream * 2]
      if kind == 'h' then
        kept[#kept + 1] = told .. ':' .. stream
        kept[#kept + 1] = bytes
      elseif kind ~= '' then
        local output = KEYS[FIXED + tonumber(kind)]
        local room = cap - call('STRLEN', output)
        if room > 0 then call('APPEND', output, string.sub(bytes, 1, room)) end
      end
    end
    k = k + 1
    done[2 * k - 1] = tid
    done[2 * k] = COMPLETED .. ' 0 ' .. owner .. ' ' .. attempt .. ' ' .. tally .. ' ' .. finished_at .. ' 0\n' .. ARGV[a + 2]
    gone[k], owned[k] = tid, owner .. ':' .. tid
    expiry[2 * k - 1], expiry[2 * k] = int(now_ms + tonumber(ttl)), tid
    if key ~= '' then keys[#keys + 1] = key end
    if any_words then
      call('ZREMRANGEBYLEX', WORDS, '[' .. tid .. ':', '(' .. tid .. ';')
    end
    reply[i] = 'done'
  else
    refuse(tid, attempt)
    reply[i] = 'stale'
  end
end
call_many('HSET', DONE, done)
call_many('HSET', OUTPUT, kept)
call_many('HDEL', TASK, gone)
call_many('ZREM', OWNED, owned)
call_many('ZADD', EXPIRY, expiry)
call_many('HDEL', UNIQUES, keys)
count('2', -running)
count('3', k)
for i = 1, #order do
  local owner = order[i]
  event(RUNNING, owner, table.concat(began[owner], ' '), #began[owner])
  event(COMPLETED, owner, table.concat(ended[owner], ' '), #ended[owner])
  dismiss(owner)
end
-- What attempts have chained is submitted with their end, in order.
local tasks = {}
for _, tid in ipairs(chains) do
  for _, packed in ipairs(call_many('HMGET', CHAINED, chained_fields(tid, call('HGET', CHAINED, tid)))) do
    for _, task in ipairs(cmsgpack.unpack(packed)) do
      tasks[#tasks + 1] = task
    end
  end
  unchain(tid)
end
submit(tasks, given_streams())
return answer(reply)
