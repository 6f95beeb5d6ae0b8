-- Removes tasks that finished long enough ago, with all their records. KEYS: their output. ARGV: for each task its id and its attempts.
local function gone(tid)
  return call('HEXISTS', SPEC, tid) == 0
end
local removed = 0
for i = FIRST, #ARGV, 2 do
  local tid, attempts = ARGV[i], tonumber(ARGV[i + 1])
  local expires = call('ZSCORE', EXPIRY, tid)
  if expires and tonumber(expires) <= now_ms then
    local done = call('HGET', DONE, tid)
    local state, service = string.match(done, '^(%d+) %S+ %S+ %S+ %S+ %S+ %S+ (%d)')
    if service == '0' then count(state, -1) end
    removed = removed + 1
    call('HDEL', SPEC, tid)
    call('HDEL', DONE, tid)
    call('ZREM', EXPIRY, tid)
    call('SREM', DEAD, tid)
    for attempt = 1, attempts do
      call('HDEL', OUTPUT, tid .. ':' .. attempt .. ':0', tid .. ':' .. attempt .. ':1')
    end
    call('ZREMRANGEBYLEX', PORTS, '[' .. tid .. '.', '(' .. tid .. '/')
    call('ZREMRANGEBYLEX', WORDS, '[' .. tid .. ':', '(' .. tid .. ';')
  end
end
for i = FIXED + 1, #KEYS do
  call('DEL', KEYS[i])
end
-- The index of tasks ends where the oldest task that is left begins, and so does the log. Workers are passed over: one that lives for a year
-- must not keep the log of a year.
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
return answer({ int(removed) })
