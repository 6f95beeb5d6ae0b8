-- Takes control messages for a worker, those that still exist. ARGV: for each the stored message,
-- the flag that it adds to its task (which outlives the worker), and the parse error if it is not a
-- control message.
write_without_memory()
local reply = {}
for i = FIRST, #ARGV, 3 do
  local message, flag, ignored = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  if call('ZREM', COMMANDS, message) == 1 then
    reply[#reply + 1] = message
    local tid = string.match(message, '^%d+')
    local rec = (flag > 0 or ignored ~= '') and call('HGET', RECORDS, tid)
    local f = rec and fields(rec)
    if f and flag > 0 then
      f[9] = int(bit.bor(tonumber(f[9]), flag))
      call('HSET', RECORDS, tid, record(f))
    end
    if ignored ~= '' then event_of_one(CONTROL_IGNORED, '', tid, f and f[2] or '0', ignored) end
  end
end
return answer(reply)
