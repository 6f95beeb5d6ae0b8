-- Removes a worker that has claimed no task and is no task itself, or the task of another worker.
-- ARGV: worker; the takeover margin if it must have expired, or '' if it leaves by itself.
write_without_memory()
local worker, margin = ARGV[FIRST], ARGV[FIRST + 1]
local lease = tonumber(call('ZSCORE', LEASES, worker) or 0)
local is_gone = margin == '' or lease < now_ms - tonumber(margin)
local rec = call('HGET', RECORDS, worker)
local is_own_task = rec and is_service(fields(rec))
if is_gone and not is_own_task and call('ZLEXCOUNT', OWNED, '[' .. worker .. ':', '(' .. worker .. ';') == 0 then
  call('SREM', EPHEMERAL_WORKERS, worker)
  remove_worker(worker)
end
return answer({ 'ok' })
