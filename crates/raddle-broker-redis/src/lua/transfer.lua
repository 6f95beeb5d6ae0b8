-- Acknowledges entries of a stream, and appends those that were pending to a queue: each once,
-- however many managers have read it. ARGV: the queue as `append` expects it; the stream; its
-- consumer group; for each entry id and text. Returns how many were appended.
local stream, group = ARGV[FIRST + 4], ARGV[FIRST + 5]
local bodies = {}
for i = FIRST + 6, #ARGV, 2 do
  if call('XACK', stream, group, ARGV[i]) == 1 then bodies[#bodies + 1] = ARGV[i + 1] end
end
if #bodies > 0 then append(FIRST, bodies) end
return answer(#bodies)
