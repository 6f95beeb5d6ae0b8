-- Removes an ephemeral worker that has no task. ARGV: worker; the takeover margin if it must have
-- expired, or '' if it leaves by itself.
write_without_memory()
local worker, margin = ARGV[FIRST], ARGV[FIRST + 1]
local lease = tonumber(call('ZSCORE', LEASES, worker) or 0)
local is_gone = margin == '' or lease < now_ms - tonumber(margin)
if is_gone and call('ZLEXCOUNT', OWNED, '[' .. worker .. ':', '(' .. worker .. ';') == 0 then
  remove_ephemeral(worker)
end
return answer({ 'ok' })
