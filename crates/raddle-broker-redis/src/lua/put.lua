-- Appends messages to a queue. ARGV: the queue as `append` expects it, with the mark 'active' to
-- append only while a worker has the task; the messages.
if #ARGV < FIRST + 4 then return answer({}) end
if ARGV[FIRST + 3] == 'active' then
  local rec = call('HGET', RECORDS, string.sub(ARGV[FIRST + 1], 1, -2))
  if not rec or not is_active(fields(rec)) then return answer({}) end
end
local bodies = {}
for i = FIRST + 4, #ARGV do
  bodies[#bodies + 1] = ARGV[i]
end
return answer(append(FIRST, bodies))
