-- Chains tasks to a running attempt. CHAINED holds under the task's id the totals, "calls tasks
-- bytes forwarded", and under the id and the number of a call the tasks of that call. ARGV: task,
-- attempt, owner, expected totals ('' for none), new totals, number of this call, packed tasks.
local tid, attempt, owner, before, now_is = unpack(ARGV, FIRST, FIRST + 4)
local rec = call('HGET', RECORDS, tid)
local f = rec and fields(rec)
if not f or not is_active(f) or is_service(f) or f[2] ~= attempt or f[6] ~= owner then
  if call('HEXISTS', SPECS, tid) == 0 then return answer('missing') end
  refuse(tid, attempt)
  return answer('stale')
end
if (call('HGET', CHAINED, tid) or '') ~= before then return answer('changed') end
call('HSET', CHAINED, tid, now_is, tid .. ':' .. ARGV[FIRST + 5], ARGV[FIRST + 6])
if not has_flag(f[9], CHAINS) then
  f[9] = int(tonumber(f[9]) + CHAINS)
  call('HSET', RECORDS, tid, record(f))
end
return answer('ok')
