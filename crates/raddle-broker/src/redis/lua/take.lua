-- Takes the first messages of a queue, or moves them to another, where they get new ids. KEYS: the queue, and that other. ARGV: how many at most; prefix and name
-- of the queue; then those of the other, and 'words' if that one is for control words.
local queue, target = KEYS[FIXED + 1], KEYS[FIXED + 2]
local max, prefix, name = tonumber(ARGV[FIRST]), ARGV[FIRST + 1], ARGV[FIRST + 2]
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
if target then
  for i = 1, #taken do
    taken[i] = string.match(taken[i], ':(.*)$')
  end
  append(target, ARGV[FIRST + 3], ARGV[FIRST + 4], ARGV[FIRST + 5], taken)
  return answer({ int(#taken) })
end
return answer(taken)
