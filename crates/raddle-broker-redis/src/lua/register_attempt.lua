-- Registers the process of a running attempt as a worker, under the id of its task. ARGV: task,
-- attempt, owner, info, lease.
local tid, attempt, owner, info, ttl_ms = unpack(ARGV, FIRST)
local rec = call('HGET', RECORDS, tid)
local f = rec and fields(rec)
if not f or not is_active(f) or is_service(f) or f[2] ~= attempt or f[6] ~= owner then
  refuse(tid, attempt)
  return answer('stale')
end
call('HSET', WORKERS, tid, info)
renew_lease(tid, tonumber(ttl_ms))
return answer(tid)
