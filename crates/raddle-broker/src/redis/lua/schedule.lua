-- In front of `expiring.lua` and `submit.lua`: changes a schedule if it is still as it was seen, and submits tasks with that. Arguments before the
-- last: name, the version that was seen or '', the microsecond that must have come or '', the microsecond at which it is due from now on or
-- '', what is stored of it or '' if it goes, and the number of tasks.
local last_arg = #ARGV
local name, seen, begins = ARGV[last_arg - 6], ARGV[last_arg - 5], ARGV[last_arg - 4]
local next_due, entry, tasks = ARGV[last_arg - 3], ARGV[last_arg - 2], tonumber(ARGV[last_arg - 1])
local version, task = '', '-'
local before = call('HGET', SCHEDULES, name)
if before then version, task = string.match(before, '^(%d+) (%S+)\n') end
if version ~= seen then return answer({ 'raced' }) end
if begins ~= '' and tonumber(begins) > now_us then return answer({ 'early' }) end
local submitted = answer
-- Last of all, when the tasks are stored.
answer = function(reply, remembered)
  if not reply[2] then return submitted(reply, remembered) end
  local known = #reply[2]
  local s, c = string.match(reply[1], '^(%d+)-(%d+)$')
  if known > 0 and reply[2][known - 1] == tasks then
    task = reply[2][known]
  elseif s then
    task = digits(id_after(tonumber(s), tonumber(c), tasks - known / 2 - 1))
  end
  version = digits(take_ids(1))
  if entry == '' then
    call('HDEL', SCHEDULES, name)
  else
    call('HSET', SCHEDULES, name, version .. ' ' .. task .. '\n' .. entry)
  end
  if next_due == '' then
    call('ZREM', AGENDA, name)
  else
    call('ZADD', AGENDA, next_due, name)
  end
  ring('control')
  table.insert(reply, 1, version)
  table.insert(reply, 1, 'made')
  return submitted(reply, remembered)
end
