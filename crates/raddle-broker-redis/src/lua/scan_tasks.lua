-- Looks at the next tasks, newest first, and returns those that may match. ARGV: the entry of
-- CREATED to begin with or '+'; how many tasks to look at; a queue or ''; the numbers of the states
-- or ''; 'services' to include them or ''; texts that the spec must have. Returns the last task
-- that was looked at ('' if there are no more), how many were, and the tasks.
local from, most, queue, states, services = ARGV[FIRST], tonumber(ARGV[FIRST + 1]), ARGV[FIRST + 2], ARGV[FIRST + 3], ARGV[FIRST + 4]
local PORTION = 500
local last_slot, last_counter = string.match(from, '^(%d+)-(%d+)$')
local tids, entries = {}, nil
repeat
  entries = call('XREVRANGE', CREATED, from, '-', 'COUNT', int(math.min(PORTION, most - #tids)))
  for _, entry in ipairs(entries) do
    local s, c = string.match(entry[1], '^(%d+)-(%d+)$')
    s, c = tonumber(s), tonumber(c)
    local newest = tonumber(entry[2][2]) - 1
    -- The first entry may stand for tasks after the one to begin with.
    if last_slot then newest = math.min(newest, (tonumber(last_slot) - s) * 4096 + tonumber(last_counter) - c) end
    for j = newest, math.max(0, newest - (most - #tids) + 1), -1 do
      tids[#tids + 1] = digits(id_after(s, c, j))
    end
    if #tids == most then break end
    from = '(' .. entry[1]
  end
until #tids == most or #entries == 0

local specs, found = call_many('HMGET', SPECS, tids), {}
for i = 1, #tids do
  local spec = specs[i]
  local partition = spec and string.match(spec, '^%S+')
  local fits = spec and (queue == '' or queue_of(partition) == '|' .. queue) and (services ~= '' or partition ~= '-')
  for a = FIRST + 5, #ARGV do
    fits = fits and string.find(spec, ARGV[a], 1, true)
  end
  if fits then found[#found + 1] = tids[i] end
end
if states ~= '' then
  local done, records, fitting = call_many('HMGET', FINISHED, found), call_many('HMGET', RECORDS, found), {}
  for i = 1, #found do
    local status = records[i] and string.sub(records[i], 1, 1)
    local state = done[i] and string.sub(done[i], 1, 1) or status == 's' and SPAWNING or status == 'x' and RUNNING or '0'
    if string.find(states, state, 1, true) then fitting[#fitting + 1] = found[i] end
  end
  found = fitting
end
return { #tids == most and tids[#tids] or '', int(#tids), found }
