-- A ready task is a member of READY: partition and id, so that each partition is a range, oldest
-- first.
local function enqueue_ready(partition, tid)
  call('ZADD', READY, '0', partition .. ' ' .. tid)
  count('r', partition, 1)
end

local function remove_ready(partition, tid)
  if call('ZREM', READY, partition .. ' ' .. tid) == 1 then count('r', partition, -1) end
end

-- Wakes workers that block in `BLPOP` on the list of a partition ('wake:partition:' and its name),
-- or one worker ('wake:worker:' and its id). An element is only a hint, and a claim that leaves a
-- task wakes the next worker, so a few elements are enough.
local MAX_WAKEUPS = 4
local function wake(list, n)
  for _ = 1, math.min(n or 1, MAX_WAKEUPS - call('LLEN', PREFIX .. list)) do
    call('RPUSH', PREFIX .. list, '')
  end
end

-- Every waiting worker checks at least this often, in microseconds, and learns then what becomes
-- due before its next check. Only earlier due times need a wake-up.
local CHECK_INTERVAL_US = 2100000
local function delay(tid, partition, due)
  call('ZADD', DELAYED, due, tid .. ' ' .. partition)
  if due - now_us < CHECK_INTERVAL_US and call('ZRANGE', DELAYED, 0, 0)[1] == tid .. ' ' .. partition then wake('wake:partition:' .. partition) end
end

-- Whether the queue of a partition is paused.
local function is_paused(partition)
  return call('SISMEMBER', PAUSED_QUEUES, string.sub(queue_of(partition), 2)) == 1
end

-- Adds new partitions and wakes all workers, because they wait only on the partitions that they
-- know.
local function add_partitions(partitions)
  local _, made = call_many('SADD', PARTITIONS, partitions)
  if made == 0 then return end
  for _, worker in ipairs(call('HKEYS', WORKERS)) do
    wake('wake:worker:' .. worker)
  end
end

-- Stores tasks. A task is its partition, stored spec and name, and if it has any of these: unique
-- key, due time ('' for now, microseconds from now, or '@' and the microsecond), the same in
-- nanoseconds, expiry as `expires_in` reads it, and batch. Returns the ids; '=' and the id of the
-- holder for a task whose unique key is taken. With `is_ephemeral`, a due task is not made ready,
-- and its id is returned too.
local function submit(tasks, is_ephemeral)
  local new, tids, taken, partitions, ready_counts = {}, {}, {}, {}, {}
  for i, task in ipairs(tasks) do
    local partition, key = task[1], task[4] or ''
    local holder = key ~= '' and (taken[key] or call('HGET', UNIQUE_KEYS, key))
    if holder then
      -- The key belongs to an earlier task of this call.
      tids[i] = holder
    else
      new[#new + 1] = i
      if key ~= '' then taken[key] = i end
      if not ready_counts[partition] then
        ready_counts[partition] = 0
        partitions[#partitions + 1] = partition
      end
    end
  end
  if #new > 0 then
    add_partitions(partitions)
    local s, c = take_ids(#new)
    for n, i in ipairs(new) do
      tids[i] = digits(id_after(s, c, n - 1))
    end
    call('XADD', CREATED, stream_id(s, c), 'n', int(#new))
    notify('log')
  end
  local specs, records, keys, ready_members, expiries, batches, due_now = {}, {}, {}, {}, {}, {}, nil
  for n, i in ipairs(new) do
    local tid = tids[i]
    local partition, spec, name, key, due, due_ns, lifetime, batch = unpack(tasks[i])
    specs[2 * n - 1], specs[2 * n] = tid, spec
    count_outcome(name, 's')
    local run_at = nil
    if lifetime then
      if key ~= '' then
        keys[#keys + 1] = key
        keys[#keys + 1] = tid
      end
      if batch then
        batches[#batches + 1] = '0'
        batches[#batches + 1] = batch .. ' ' .. tid
      end
      local expires = expires_in(lifetime)
      if expires then
        expiries[#expiries + 1] = expires
        expiries[#expiries + 1] = tid
      end
      if string.sub(due, 1, 1) == '@' then
        run_at = tonumber(string.sub(due, 2))
      elseif due ~= '' then
        run_at = now_us + tonumber(due)
        due_ns = int(run_at) .. '000'
      end
    end
    if run_at and run_at > now_us then
      local _, ttl = head(spec)
      records[#records + 1] = tid
      records[#records + 1] = record({ 'd', 0, 0, 0, partition, '-', '-', '-', 0, due_ns, ttl, '-', '-', name, key })
      delay(tid, partition, int(run_at))
      count('d', partition, 1)
    elseif is_ephemeral then
      due_now = tid
    else
      ready_members[#ready_members + 1] = '0'
      ready_members[#ready_members + 1] = partition .. ' ' .. tid
      ready_counts[partition] = ready_counts[partition] + 1
    end
  end
  call_many('HSET', SPECS, specs)
  call_many('HSET', RECORDS, records)
  call_many('HSET', UNIQUE_KEYS, keys)
  call_many('ZADD', READY, ready_members)
  call_many('ZADD', BATCHES, batches)
  store_expiries(expiries)
  for partition, n in pairs(ready_counts) do
    if n > 0 then
      count('r', partition, n)
      wake('wake:partition:' .. partition, n)
    end
  end
  if #new < #tasks then
    local is_new = {}
    for _, i in ipairs(new) do
      is_new[i] = true
    end
    for i, tid in ipairs(tids) do
      if not is_new[i] then tids[i] = '=' .. (type(tid) == 'number' and tids[tid] or tid) end
    end
  end
  return tids, due_now
end

-- Removes a task from its batch, whose name only the spec holds. Decoding specs is slow, and most
-- have no batch.
local function leave_batch(tid)
  local spec = call('HGET', SPECS, tid)
  if not spec or not string.find(spec, '"batch":"', 1, true) then return end
  local ok, decoded = pcall(cjson.decode, string.match(spec, '\n(.*)$'))
  if ok and decoded.batch then call('ZREM', BATCHES, decoded.batch .. ' ' .. tid) end
end

-- Records that a finished task was submitted again: it is no longer a dead letter, nor in its batch.
local function mark_resubmitted(tid)
  call('ZREM', DEAD_LETTERS, tid)
  leave_batch(tid)
  local done = call('HGET', FINISHED, tid)
  if not done then return end
  local state, dead, rest = string.match(done, '^(%d+) (%d) (.*)$')
  call('HSET', FINISHED, tid, state .. ' 0 ' .. rest)
  if dead == '1' then count('D', head(call('HGET', SPECS, tid)), -1) end
end
