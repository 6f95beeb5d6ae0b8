-- Counts tasks of a batch by state, in portions. ARGV: name, last counted task or '', portion size.
-- Returns the last task of the portion ('' at the end), then pairs of state (numbered as in
-- `TaskState`) and count.
local name, last, most = ARGV[FIRST], ARGV[FIRST + 1], tonumber(ARGV[FIRST + 2])
local from = last == '' and '[' .. name .. ' ' or '(' .. name .. ' ' .. last
local members = call('ZRANGEBYLEX', BATCHES, from, '(' .. name .. '!', 'LIMIT', '0', int(most))
local tids, states = {}, {}
for i, member in ipairs(members) do
  tids[i] = string.sub(member, #name + 2)
end
local done, records = call_many('HMGET', FINISHED, tids), call_many('HMGET', RECORDS, tids)
for i = 1, #tids do
  local state = done[i] and string.match(done[i], '^%d+')
  if not state then
    local status = records[i] and string.sub(records[i], 1, 1)
    state = status == 's' and SPAWNING or status == 'x' and RUNNING or '0'
  end
  states[state] = (states[state] or 0) + 1
end
local reply = { #tids == most and tids[#tids] or '' }
for state, n in pairs(states) do
  reply[#reply + 1] = state
  reply[#reply + 1] = int(n)
end
return reply
