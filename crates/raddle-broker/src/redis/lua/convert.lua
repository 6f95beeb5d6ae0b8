-- Takes messages that were seen, if all of them are there, and submits tasks and appends other messages instead. KEYS: the queue, that of each
-- other message, and the streams of partitions. ARGV: the tasks, packed; the name of the queue if it is one of its own; the number of messages,
-- and these as they are stored; of each other message prefix, name and mark of its queue, as `append` takes them, and its text.
local tasks, name, n = cmsgpack.unpack(ARGV[FIRST]), ARGV[FIRST + 1], tonumber(ARGV[FIRST + 2])
local source, seen = KEYS[FIXED + 1], {}
for i = 1, n do
  seen[i] = ARGV[FIRST + 2 + i]
  if not call('ZSCORE', source, seen[i]) then return answer({ 'raced' }) end
end
local streams = given_streams()
local fresh = open_parts(streams)
local tids = submit(tasks, streams)
call_many('ZREM', source, seen)
if name ~= '' and call('ZCARD', source) == 0 then call('SREM', QUEUES, name) end
local key = FIXED + 1
for a = FIRST + 3 + n, #ARGV, 4 do
  key = key + 1
  append(KEYS[key], ARGV[a], ARGV[a + 1], ARGV[a + 2], { ARGV[a + 3] })
end
return answer({ 'made', fresh, tids })
