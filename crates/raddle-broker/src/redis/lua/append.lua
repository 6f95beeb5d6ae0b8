-- Adds to the output of a running attempt. KEYS: where it is kept. ARGV: task, attempt, the most bytes kept, the bytes.
local rec = call('HGET', TASK, ARGV[FIRST])
local f = rec and fields(rec)
if f and f[2] == ARGV[FIRST + 1] and is_active(f) and not is_service(f) then
  local key = KEYS[FIXED + 1]
  local room = tonumber(ARGV[FIRST + 2]) - call('STRLEN', key)
  if room > 0 then call('APPEND', key, string.sub(ARGV[FIRST + 3], 1, room)) end
  ring('log')
end
return answer({})
