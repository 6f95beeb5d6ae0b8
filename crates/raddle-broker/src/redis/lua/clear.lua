-- Removes the messages of a queue. KEYS: the queue. ARGV: prefix and name.
local queue, prefix, name = KEYS[FIXED + 1], ARGV[FIRST], ARGV[FIRST + 1]
local low, high = '-', '+'
if prefix ~= '' then
  low, high = '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. ';'
end
local removed = call('ZREMRANGEBYLEX', queue, low, high)
if name ~= '' then call('SREM', QUEUES, name) end
return answer({ int(removed) })
