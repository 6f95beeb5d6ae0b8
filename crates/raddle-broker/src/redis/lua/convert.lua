-- In front of `expiring.lua` and `submit.lua`: takes messages that were seen, if all of them are there, and submits tasks instead. KEYS: the queue is the
-- last. Arguments before the last: the messages as they are stored, the name of the queue if it is one of its own, and the number of messages.
local last_arg = #ARGV
local count_of, name_of = tonumber(ARGV[last_arg - 1]), ARGV[last_arg - 2]
local source, seen = KEYS[#KEYS], {}
for i = 1, count_of do
  seen[i] = ARGV[last_arg - 3 - count_of + i]
  if not call('ZSCORE', source, seen[i]) then return answer({ 'raced' }) end
end
local submitted = answer
-- Last of all, when the tasks are stored.
answer = function(reply, remembered)
  if not reply[2] then return submitted(reply, remembered) end
  call_many('ZREM', source, seen)
  if name_of ~= '' and call('ZCARD', source) == 0 then call('SREM', QUEUES, name_of) end
  table.insert(reply, 1, 'made')
  return submitted(reply, remembered)
end
