-- Lets tasks follow a running attempt: they stand aside until that has succeeded.
-- KEYS: the streams of their partitions. ARGV: task, attempt, what there was of it before ('' for nothing), what there is now, the number of this
-- call, and the tasks, packed.
local tid, attempt, before, now_is = ARGV[FIRST], ARGV[FIRST + 1], ARGV[FIRST + 2], ARGV[FIRST + 3]
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
-- Partitions are made now, so that there is nothing to be told to anybody when the attempt ends.
return answer({ 'ok', open_parts(given_streams()) })
