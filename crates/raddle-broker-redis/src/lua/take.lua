-- Takes the first messages of a queue, or moves them to another, where they get new ids. ARGV:
-- maximum; the queue, and the other queue if any, as `append` expects them. Returns the messages.
write_without_memory()
local max, queue, prefix, name = tonumber(ARGV[FIRST]), ARGV[FIRST + 1], ARGV[FIRST + 2], ARGV[FIRST + 3]
local low, high = '-', '+'
if prefix ~= '' then
  low, high = '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. ';'
end
local taken = call('ZRANGEBYLEX', queue, low, high, 'LIMIT', 0, max)
if #taken == 0 then return answer({}) end
call_many('ZREM', queue, taken)
if name ~= '' and call('ZCARD', queue) == 0 then call('SREM', QUEUES, name) end
for i = 1, #taken do
  taken[i] = string.sub(taken[i], #prefix + 1)
end
if ARGV[FIRST + 5] then
  for i = 1, #taken do
    taken[i] = string.match(taken[i], ':(.*)$')
  end
  append(FIRST + 5, taken)
end
return answer(taken)
