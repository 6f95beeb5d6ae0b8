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
      call('HDEL', OUT, tid .. ':' .. attempt .. ':0', tid .. ':' .. attempt .. ':1')
    end
    call('ZREMRANGEBYLEX', PORTS, '[' .. tid .. '.', '(' .. tid .. '/')
    call('ZREMRANGEBYLEX', WORDS, '[' .. tid .. ':', '(' .. tid .. ';')
  end
end
for i = FIXED + 1, #KEYS do
  call('DEL', KEYS[i])
end
-- The index of tasks ends where the oldest task that is left begins, and so does the log.
repeat
  local entries, looked = call('XRANGE', BORN, '-', '+', 'COUNT', 100), 0
  for i = 1, #entries do
    local id, n = entries[i][1], tonumber(entries[i][2][2])
    local s, c = string.match(id, '^(%d+)-(%d+)$')
    for j = 0, n - 1 do
      if not gone(digits(id_after(tonumber(s), tonumber(c), j))) then break end
      if j == n - 1 then
        call('XDEL', BORN, id)
        looked = looked + 1
      end
    end
    if looked < i then break end
  end
until looked < 100
local oldest = call('XRANGE', BORN, '-', '+', 'COUNT', 1)
if oldest[1] then
  call('XTRIM', LOG, 'MINID', oldest[1][1])
else
  call('XTRIM', LOG, 'MAXLEN', 0)
end
return answer({ int(removed) })
