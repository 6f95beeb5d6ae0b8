-- Ends attempts that went well: nothing is left to decide. ARGV for each: task, attempt, report, and twice (standard output and error) the
-- kind of what is added to it ('' nothing, 'h' all of it is here, a number: the end of what is under that key) and the bytes; then
-- the most bytes that are kept of one stream.
local n = (#ARGV - FIRST) / 7
local cap = tonumber(ARGV[#ARGV])
local tids = {}
for i = 1, n do
  tids[i] = ARGV[FIRST + (i - 1) * 7]
end
local records = call_many('HMGET', TASK, tids)
local reply, done, gone, owned, expiry, kept, keys = {}, {}, {}, {}, {}, {}, {}
local began, ended, order = {}, {}, {}
local any_words = call('ZCARD', WORDS) > 0
local seen = {}
for i = 1, n do
  local a = FIRST + (i - 1) * 7
  local tid, attempt, report = ARGV[a], ARGV[a + 1], ARGV[a + 2]
  local f = records[i] and not seen[tid] and fields(records[i])
  if f and f[2] == attempt and is_active(f) and not is_service(f) then
    seen[tid] = true
    local owner = f[6]
    if not ended[owner] then
      ended[owner], began[owner] = {}, {}
      order[#order + 1] = owner
    end
    local told = tid .. ':' .. attempt
    if f[1] == 's' then table.insert(began[owner], told) end
    table.insert(ended[owner], told)
    count(f[1] == 's' and '1' or '2', -1)
    for stream = 0, 1 do
      local kind, bytes = ARGV[a + 3 + stream * 2], ARGV[a + 4 + stream * 2]
      if kind == 'h' then
        kept[#kept + 1] = tid .. ':' .. attempt .. ':' .. stream
        kept[#kept + 1] = bytes
      elseif kind ~= '' then
        local key = KEYS[FIXED + tonumber(kind)]
        local room = cap - call('STRLEN', key)
        if room > 0 then call('APPEND', key, string.sub(bytes, 1, room)) end
      end
    end
    done[#done + 1] = tid
    done[#done + 1] = table.concat({ COMPLETED, 0, owner, attempt, f[3], f[4], int(now_us), 0 }, ' ') .. '\n' .. report
    gone[#gone + 1] = tid
    owned[#owned + 1] = owner .. ':' .. tid
    expiry[#expiry + 1] = int(now_ms + tonumber(f[11]))
    expiry[#expiry + 1] = tid
    if f[12] ~= '' then keys[#keys + 1] = f[12] end
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
call_many('HSET', OUT, kept)
call_many('HDEL', TASK, gone)
call_many('ZREM', OWNED, owned)
call_many('ZADD', EXPIRY, expiry)
call_many('HDEL', UNIQUES, keys)
count('3', #gone)
for i = 1, #order do
  local owner = order[i]
  event(RUNNING, owner, table.concat(began[owner], ' '), #began[owner])
  event(COMPLETED, owner, table.concat(ended[owner], ' '), #ended[owner])
  dismiss(owner)
end
return answer(reply)
