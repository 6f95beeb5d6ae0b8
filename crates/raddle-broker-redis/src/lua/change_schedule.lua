-- Changes a schedule if its version is the expected one, and submits tasks. ARGV: packed tasks;
-- name; expected version or ''; earliest microsecond or ''; microsecond of the next due time or '';
-- new entry, or '' to remove the schedule.
local tasks, name, seen, begins, next_due, entry = unpack(ARGV, FIRST)
local version, task = '', '-'
local before = call('HGET', SCHEDULES, name)
if before then version, task = string.match(before, '^(%d+) (%S+)\n') end
if version ~= seen then return answer({ 'conflict', {} }) end
if begins ~= '' and tonumber(begins) > now_us then return answer({ 'early', {} }) end
local tids = submit(cmsgpack.unpack(tasks))
if #tids > 0 then task = string.match(tids[#tids], '%d+') end
version = digits(take_ids(1))
if entry == '' then
  call('HDEL', SCHEDULES, name)
else
  call('HSET', SCHEDULES, name, version .. ' ' .. task .. '\n' .. entry)
end
if next_due == '' then
  call('ZREM', DUE_SCHEDULES, name)
else
  call('ZADD', DUE_SCHEDULES, next_due, name)
end
notify('control')
return answer({ version, tids })
