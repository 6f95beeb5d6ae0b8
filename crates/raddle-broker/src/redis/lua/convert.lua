-- In front of `expiring.lua` and `submit.lua`: takes messages that were seen, if all of them are there, and submits tasks and appends other messages
-- instead. KEYS: the last are the queue, and that of each other message. Arguments before the last: the messages as they are stored; of each other
-- message prefix, name and mark of its queue, as `append` takes them, and its text; the name of the queue if it is one of its own; the number of
-- messages, and of others.
local last_arg = #ARGV
local letters_of, count_of, name_of = tonumber(ARGV[last_arg - 1]), tonumber(ARGV[last_arg - 2]), ARGV[last_arg - 3]
local letter_arg, letter_key = last_arg - 4 - 4 * letters_of, #KEYS - letters_of
local source, seen = KEYS[letter_key], {}
for i = 1, count_of do
  seen[i] = ARGV[letter_arg - count_of + i]
  if not call('ZSCORE', source, seen[i]) then return answer({ 'raced' }) end
end
local submitted = answer
-- Last of all, when the tasks are stored.
answer = function(reply, remembered)
  if not reply[2] then return submitted(reply, remembered) end
  call_many('ZREM', source, seen)
  if name_of ~= '' and call('ZCARD', source) == 0 then call('SREM', QUEUES, name_of) end
  for i = 1, letters_of do
    local a = letter_arg + 4 * i
    append(KEYS[letter_key + i], ARGV[a - 3], ARGV[a - 2], ARGV[a - 1], { ARGV[a] })
  end
  table.insert(reply, 1, 'made')
  return submitted(reply, remembered)
end
