-- Takes messages that were seen, if all of them are there, and submits tasks and appends other messages instead. ARGV: the tasks, packed; the
-- queue, as `append` takes it; the number of messages, and these as they are stored; of each other message its queue and its text. Answers the
-- ids of the tasks, or nothing.
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
