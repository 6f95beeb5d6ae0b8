-- Claims tasks by priority and age over the partitions that a worker serves. ARGV: worker, maximum,
-- number of partitions that the caller knows, a single task to claim or '', the partitions. Returns
-- a word and its values: 'ok' and for each task id, attempt, fencing token and spec; 'none' and the
-- microseconds until the next task is due; 'partitions' if the caller does not know all partitions;
-- 'expired' if the worker has no lease.
local owner, max, known, only = ARGV[FIRST], tonumber(ARGV[FIRST + 1]), tonumber(ARGV[FIRST + 2]), ARGV[FIRST + 3]
local SERVED = FIRST + 4
-- The partitions that tasks are taken from: those of paused queues are left out.
local served = {}
-- The most delayed tasks that one claim makes ready. The next claim goes on.
local PROMOTED = 256
-- Wakes a worker for a partition that has a ready task.
local function wake_for_waiting(partition)
  if call('ZLEXCOUNT', READY, '[' .. partition .. ' ', '(' .. partition .. '!') > 0 then wake('wake:partition:' .. partition) end
end

-- A worker with an expired lease gets nothing: its runners have given up, and other workers reclaim
-- its tasks. Its `BLPOP` may have taken the element that was to wake a worker, so wake another.
if not has_lease(owner) then
  for i = SERVED, #ARGV do
    wake_for_waiting(ARGV[i])
  end
  return answer({ 'expired' })
end
if only == '' and call('SCARD', PARTITIONS) ~= known then return answer({ 'partitions' }) end

local paused = {}
for _, queue in ipairs(call('SMEMBERS', PAUSED_QUEUES)) do
  paused['|' .. queue] = true
end
for i = SERVED, #ARGV do
  if not next(paused) or not paused[queue_of(ARGV[i])] then served[#served + 1] = ARGV[i] end
end

-- Make due tasks ready, whatever they need.
local promoted = {}
local next_due = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')
if next_due[1] and tonumber(next_due[2]) <= now_us then
  local due = call('ZRANGEBYSCORE', DELAYED, '-inf', int(now_us), 'LIMIT', 0, PROMOTED)
  local tids, changed = {}, {}
  for i = 1, #due do
    tids[i] = string.sub(due[i], 1, 19)
  end
  local records = call('HMGET', RECORDS, unpack(tids))
  for i = 1, #due do
    local f, partition = fields(records[i]), string.sub(due[i], 21)
    f[1], f[10], f[12] = 'r', '-', string.sub(f[10], 1, -4)
    changed[2 * i - 1], changed[2 * i] = tids[i], record(f)
    enqueue_ready(partition, tids[i])
    count('d', partition, -1)
    promoted[partition] = true
  end
  call('HSET', RECORDS, unpack(changed))
  call('ZREM', DELAYED, unpack(due))
  next_due = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')
end

-- The claimed tasks: ids and members of READY. And the partition of the first ready task that
-- remains.
local tids, from_ready, left = {}, {}, nil
-- Reads a chunk of each partition, merges them, and takes tasks up to the point where an unread
-- task of some partition may come first; then continues from there.
local function take_in_order()
  local chunk, from, taken = floor(max / math.max(#served, 1)) + 2, {}, {}
  repeat
    local found, horizon = {}, nil
    for _, partition in ipairs(served) do
      local page = call('ZRANGEBYLEX', READY, from[partition] or '[' .. partition .. ' ', '(' .. partition .. '!', 'LIMIT', '0', int(chunk))
      -- A partition begins with the digit of its priority.
      local urgency = int(9 - string.sub(partition, 1, 1))
      for j = 1, #page do
        local entry = urgency .. string.sub(page[j], -19) .. partition
        if horizon and horizon < entry then break end
        found[#found + 1] = entry
        if j == chunk then horizon = entry end
      end
    end
    table.sort(found)
    for i = 1, #found do
      if horizon and found[i] > horizon then break end
      local tid, partition = string.sub(found[i], 2, 20), string.sub(found[i], 21)
      if #tids == max then
        left = partition
        break
      end
      local k = #tids + 1
      tids[k], from_ready[k] = tid, partition .. ' ' .. tid
      from[partition], taken[partition] = '(' .. from_ready[k], (taken[partition] or 0) + 1
    end
    chunk = chunk * 2
  until left or not horizon
  for partition, n in pairs(taken) do
    count('r', partition, -n)
  end
end

if only == '' then
  take_in_order()
else
  -- The caller has only seen that the task exists: the record decides.
  local spec, rec = call('HGET', SPECS, only), call('HGET', RECORDS, only)
  if max > 0 and spec and call('HEXISTS', FINISHED, only) == 0 and (not rec or fields(rec)[1] == 'r') and not paused[queue_of(head(spec))] then
    tids[1] = only
  end
end
-- Read before anything is removed, so that an unreadable record does not take the others with it.
local specs, records = call_many('HMGET', SPECS, tids), call_many('HMGET', RECORDS, tids)
for i = 1, #tids do
  records[i] = records[i] and fields(records[i])
end
if only == '' then
  call_many('ZREM', READY, from_ready)
elseif #tids > 0 then
  remove_ready(head(specs[1]), only)
end

-- Wake another worker for tasks that became ready and remain; for the next ready task, so that the
-- tasks of a batch wake workers one after another; and for a task that is due soon, because this
-- worker now has tasks and does not check again in time.
for partition in pairs(promoted) do
  wake_for_waiting(partition)
end
if left and not promoted[left] then wake('wake:partition:' .. left) end
if #tids > 0 and next_due[1] and tonumber(next_due[2]) - now_us < CHECK_INTERVAL_US then wake('wake:partition:' .. string.sub(next_due[1], 21)) end

if #tids == 0 then
  -- Left-over elements would wake workers for nothing.
  for i = SERVED, left and 0 or #ARGV do
    call('DEL', PREFIX .. 'wake:partition:' .. ARGV[i])
  end
  return answer({ 'none', next_due[2] and int(math.max(0, tonumber(next_due[2]) - now_us)) or '' })
end
-- The stored reply has no specs: they are large, and stored already.
local reply, again = { 'ok' }, { 'stored' }
local claimed_at, changed, owned, attempts, claimed = int(now_us), {}, {}, {}, {}
for i = 1, #tids do
  if specs[i] then
    local n, f = #attempts + 1, records[i]
    local attempt = f and int(tonumber(f[2]) + 1) or '1'
    claimed[n], attempts[n] = i, tids[i] .. ':' .. attempt
    reply[4 * n - 2], reply[4 * n - 1], reply[4 * n + 1] = tids[i], attempt, specs[i]
    again[3 * n - 1], again[3 * n] = tids[i], attempt
  end
end
-- The fencing token is the id of the event: ids come from the clock, so a server that has lost a
-- claim does not give its token out again.
local s, c, entry = event(SPAWNING, owner, attempts)
for n = 1, #attempts do
  local tid, spec, f = tids[claimed[n]], specs[claimed[n]], records[claimed[n]]
  local partition, name, since
  if f then
    partition, name, since = f[5], f[14], tonumber(f[12])
    f[1], f[2], f[6], f[7], f[8], f[9], f[10], f[13] = 's', reply[4 * n - 1], owner, claimed_at, '-', 0, '-', add_events(f[13], entry)
    changed[2 * n] = record(f)
  else
    changed[2 * n], partition, name = initial_record(spec, owner, entry)
  end
  count('s', partition, 1)
  if reply[4 * n - 1] == '1' then count_outcome(name, bucket(now_us - (since or submitted_at(tid)))) end
  changed[2 * n - 1] = tid
  owned[2 * n - 1], owned[2 * n] = '0', owner .. ':' .. tid
  local token = digits(id_after(s, c, n - 1))
  reply[4 * n], again[3 * n + 1] = token, token
end
call_many('HSET', RECORDS, changed)
call_many('ZADD', OWNED, owned)
return answer(reply, again)
