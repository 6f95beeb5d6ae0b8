-- Appends messages to a queue. KEYS: the queue. ARGV: what its members begin with, its name if it is one of its own, 'words' for control
-- words ('active' if only while somebody runs the task), and the messages.
local queue, prefix, name = KEYS[FIXED + 1], ARGV[FIRST], ARGV[FIRST + 1]
local n = #ARGV - FIRST - 2
if n == 0 then return answer({}) end
local mark = ARGV[FIRST + 2]
if mark == 'active' then
  local rec = call('HGET', TASK, string.sub(prefix, 1, -2))
  if not rec or not is_active(fields(rec)) then return answer({}) end
end
local s, c = take_ids(n)
local members, reply = {}, {}
for i = 1, n do
  reply[i] = digits(id_after(s, c, i - 1))
  members[#members + 1] = 0
  members[#members + 1] = prefix .. reply[i] .. ':' .. ARGV[FIRST + 2 + i]
end
call_many('ZADD', queue, members)
if name ~= '' then call('SADD', QUEUES, name) end
ring('queue')
if mark ~= '' then ring('control') end
return answer(reply)
