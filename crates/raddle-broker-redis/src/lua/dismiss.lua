-- Lets a worker leave that was there for one task alone and has none. ARGV: worker; the margin after which its lease counts as run out,
-- or '' if it leaves by itself.
write_without_memory()
local worker, margin = ARGV[FIRST], ARGV[FIRST + 1]
local lease = tonumber(call('ZSCORE', LEASE, worker) or 0)
local is_gone = margin == '' or lease < now_ms - tonumber(margin)
if is_gone and call('ZLEXCOUNT', OWNED, '[' .. worker .. ':', '(' .. worker .. ';') == 0 then
  dismiss(worker)
end
return answer({ 'ok' })
