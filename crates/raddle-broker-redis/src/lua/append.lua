-- Appends to the output of a running attempt. ARGV: task, attempt, owner, stream, maximum size,
-- bytes.
local tid, attempt, owner, stream, cap, bytes = unpack(ARGV, FIRST)
local rec = call('HGET', RECORDS, tid)
local f = rec and fields(rec)
if f and f[2] == attempt and f[6] == owner and is_active(f) and not is_service(f) then
  append_output(tid .. ':' .. attempt .. ':' .. stream, bytes, cap)
  notify('log')
end
return answer({})
