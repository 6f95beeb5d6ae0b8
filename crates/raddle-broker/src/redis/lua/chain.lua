-- Lets tasks follow a running attempt: they stand aside until that has succeeded.
-- KEYS: the streams of their partitions. ARGV: task, attempt, what there was of it before ('' for nothing), what there is now, the number of this
-- call, the tasks; and the partitions.
local tid, attempt, before, now_is = ARGV[FIRST], ARGV[FIRST + 1], ARGV[FIRST + 2], ARGV[FIRST + 3]
local PARTITIONS = FIRST + 6
local rec = call('HGET', TASK, tid)
local f = rec and fields(rec)
if not f or not is_active(f) or is_service(f) or f[2] ~= attempt then
  if call('HEXISTS', SPEC, tid) == 0 then return answer({ 'missing' }) end
  refuse(tid, attempt)
  return answer({ 'stale' })
end
if (call('HGET', CHAINED, tid) or '') ~= before then return answer({ 'changed' }) end
call('HSET', CHAINED, tid, now_is, tid .. ':' .. ARGV[FIRST + 4], ARGV[FIRST + 5])
if not is_chained(f) then
  f[9] = int(tonumber(f[9]) + 2)
  call('HSET', TASK, tid, record(f))
end
-- Partitions that nobody has heard of are made now, so that there is nothing to be told to anybody when the attempt ends.
local parts, fresh = {}, {}
for i = PARTITIONS, #ARGV do
  parts[#parts + 1] = ARGV[i]
end
local heard = #parts > 0 and call('SMISMEMBER', PARTS, unpack(parts)) or {}
for p = 1, #parts do
  if heard[p] == 0 then
    local made = redis.pcall('XGROUP', 'CREATE', KEYS[FIXED + p], 'raddle', '0', 'MKSTREAM')
    if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
    fresh[#fresh + 1] = parts[p]
  end
end
call_many('SADD', PARTS, fresh)
return answer({ 'ok', int(#fresh) })
