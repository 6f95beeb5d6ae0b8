-- Applies an action to the next tasks of an operation, and stores how far that has come: all of it,
-- or nothing if the operation or one of the tasks has changed since it was read. ARGV: see
-- `changes.lua`; the operation, as it was read, as it is to be stored; packed tasks, to which
-- retries refer by index. Returns 'ok', 'moved' if the operation has changed, or 'changed'.
local id, before, after = unpack(ARGV, FIRST + 3, FIRST + 5)
local TASKS = FIRST + 5
if call('HGET', OPERATIONS, id) ~= before then return answer('moved') end
local steps = cjson.decode(ARGV[FIRST + 2])

-- Whether a finished task is as it was read: its record up to the report.
local function is_unchanged(it)
  local done = call('HGET', FINISHED, it.tid)
  return done and string.match(done, '^[^\n]*') == it.done
end
for _, it in ipairs(steps) do
  if it.change and find_conflict(it.change) then return answer('changed') end
  if it.command and call('HGET', RECORDS, it.command.tid) ~= it.command.from then return answer('changed') end
  if it.delete and not is_unchanged(it.delete) then return answer('changed') end
  if it.retry and not is_unchanged(it.retry) then return answer('changed') end
  if it.retry and it.retry.key ~= '' and call('HEXISTS', UNIQUE_KEYS, it.retry.key) == 1 then return answer('changed') end
end

-- An operation has one action, and all but retries finish tasks or free memory.
if not (steps[1] and steps[1].retry) then write_without_memory() end
local again, deleted = {}, {}
for _, it in ipairs(steps) do
  if it.change then
    apply_change(it.change)
  elseif it.command then
    call('ZADD', COMMANDS, '0', it.command.tid .. ':' .. digits(take_ids(1)) .. ':' .. it.command.body)
    notify('queue')
    notify('control')
  elseif it.retry then
    again[#again + 1] = cmsgpack.unpack(ARGV[TASKS + it.retry.task])[1]
    mark_resubmitted(it.retry.tid)
  elseif it.delete then
    deleted[#deleted + 1] = it.delete.tid
  end
end
if #again > 0 then submit(again) end
delete_tasks(deleted)
call('HSET', OPERATIONS, id, after)
return answer('ok')
