-- Replaces messages by tasks and other messages, if all of them exist. ARGV: packed tasks; the
-- queue as `append` expects it; the number of messages and the messages as stored; for each new
-- message its queue and text. Returns the ids of the tasks, or false.
local tasks, source, name, n = cmsgpack.unpack(ARGV[FIRST]), ARGV[FIRST + 1], ARGV[FIRST + 3], tonumber(ARGV[FIRST + 5])
local seen = { unpack(ARGV, FIRST + 6, FIRST + 5 + n) }
for i = 1, n do
  if not call('ZSCORE', source, seen[i]) then return answer(false) end
end
local tids = submit(tasks)
call_many('ZREM', source, seen)
if name ~= '' and call('ZCARD', source) == 0 then call('SREM', QUEUES, name) end
for a = FIRST + 6 + n, #ARGV, 5 do
  append(a, { ARGV[a + 4] })
end
return answer(tids)
