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
local bodies = {}
for i = 1, n do
  bodies[i] = ARGV[FIRST + 2 + i]
end
return answer(append(queue, prefix, name, mark, bodies))
