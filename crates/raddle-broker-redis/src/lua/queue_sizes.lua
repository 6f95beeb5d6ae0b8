-- Counts the messages in the queues of tasks: pairs of member prefix and count.
local reply = {}
local function count_members(key, pattern)
  local from, counts, order = 0, {}, {}
  repeat
    local members = call('ZRANGE', key, from, from + 999)
    for i = 1, #members do
      local name = string.match(members[i], pattern)
      if not counts[name] then
        counts[name] = 0
        order[#order + 1] = name
      end
      counts[name] = counts[name] + 1
    end
    from = from + 1000
  until #members < 1000
  for i = 1, #order do
    reply[#reply + 1] = order[i]
    reply[#reply + 1] = int(counts[order[i]])
  end
end
count_members(COMMANDS, '^(%d+):')
count_members(TASK_MESSAGES, '^(%d+%.[a-z_]+):')
return reply
