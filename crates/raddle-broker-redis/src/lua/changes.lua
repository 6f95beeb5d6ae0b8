-- Changes of tasks, for the scripts that begin with these arguments: maximum output size, takeover
-- margin, what to do as JSON, then output bytes that it refers to by index.
local cap, margin, BYTES = ARGV[FIRST], tonumber(ARGV[FIRST + 1]), FIRST + 2
-- The most chained tasks submitted by one script, unless a single attempt has chained more.
local MAX_SUBMITTED = 2000
local submitted = 0

local function is_gone(owner)
  local lease = call('ZSCORE', LEASES, owner)
  return lease and tonumber(lease) < now_ms - margin
end

-- Why a change cannot be applied, or nil.
local function find_conflict(it)
  if call('HEXISTS', SPECS, it.tid) == 0 then return 'missing' end
  if (call('HGET', RECORDS, it.tid) or '') ~= it.from then return 'changed' end
  if it.from == '' and call('HEXISTS', FINISHED, it.tid) == 1 then return 'changed' end
  if it.commands and count_commands(it.tid) ~= it.commands then return 'changed' end
  if it.lost_owner and not is_gone(it.lost_owner) then return 'alive' end
  if submitted >= MAX_SUBMITTED and it.submits_chained then return 'changed' end
  if it.removes_worker and call('ZLEXCOUNT', OWNED, '[' .. it.tid .. ':', '(' .. it.tid .. ';') > 0 then return 'changed' end
end

-- Takes and returns what an attempt has chained.
local function take_chained(tid)
  local account, fields = call('HGET', CHAINED, tid) or '0', {}
  for i = 1, tonumber(string.match(account, '^%d+')) do
    fields[i] = tid .. ':' .. i
  end
  local chained = call_many('HMGET', CHAINED, fields)
  fields[#fields + 1] = tid
  call_many('HDEL', CHAINED, fields)
  return chained
end

local function leave_status(it, f)
  local status = f and f[1] or 'r'
  if status == 'r' then
    remove_ready(it.partition, it.tid)
  elseif status == 'd' then
    call('ZREM', DELAYED, it.tid .. ' ' .. it.partition)
    count('d', it.partition, -1)
  elseif status == 'p' then
    count('p', it.partition, -1)
  elseif not is_service(f) then
    call('ZREM', OWNED, f[6] .. ':' .. it.tid)
    count(status, it.partition, -1)
  end
end

-- The new record, with the events of this script.
local function store_record(it)
  local f = fields(it.to)
  f[13] = take_logged(it.tid, f[13])
  call('HSET', RECORDS, it.tid, record(f))
  return f
end

local function enter_status(it)
  local f = store_record(it)
  local status = f[1]
  if status == 'r' then
    enqueue_ready(it.partition, it.tid)
    wake('wake:partition:' .. it.partition)
  elseif status == 'd' then
    delay(it.tid, it.partition, it.due)
    count('d', it.partition, 1)
  elseif status == 'p' then
    count('p', it.partition, 1)
  elseif not is_service(f) then
    call('ZADD', OWNED, '0', f[6] .. ':' .. it.tid)
    count(status, it.partition, 1)
  end
end

local function finish(it, f)
  call('HDEL', RECORDS, it.tid)
  local before, events, after = split_finished(it.finished)
  call('HSET', FINISHED, it.tid, before .. take_logged(it.tid, events) .. after)
  call('ZADD', RETENTION, it.expires, it.tid)
  if not (f and is_service(f)) then
    count(int(it.state), it.partition, 1)
    if int(it.state) ~= COMPLETED then call('ZADD', UNSUCCESSFUL, '0', int(it.state) .. ' ' .. it.tid) end
    count_outcome(it.name, int(it.state))
    if it.run then count_outcome(it.name, 'x' .. int(it.run)) end
  end
  if it.dead_letter then
    call('ZADD', DEAD_LETTERS, '0', it.tid)
    count('D', it.partition, 1)
  end
  if f and is_active(f) then remove_ephemeral(f[6]) end
  if it.key and call('HGET', UNIQUE_KEYS, it.key) == it.tid then call('HDEL', UNIQUE_KEYS, it.key) end
  if it.removes_worker then remove_worker(it.tid) end
end

-- Applies a change that has no conflict.
local function apply_change(it)
  local f = it.from ~= '' and fields(it.from)
  for j = 1, #it.output do
    local out = it.output[j]
    if out.whole then
      call('HSET', OUTPUT, out.field, ARGV[BYTES + out.bytes])
    else
      append_output(out.field, ARGV[BYTES + out.bytes], cap)
    end
  end
  for j = 1, #it.events do
    local e = it.events[j]
    event_of_one(e.kind, e.worker, it.tid, e.attempt, e.detail)
  end
  local chained = it.changes_status and f and is_active(f) and has_flag(f[9], CHAINS) and take_chained(it.tid) or {}
  if it.changes_status then
    leave_status(it, f)
    if it.spec then
      -- The task moves to another partition.
      call('HSET', SPECS, it.tid, it.spec)
      add_partitions({ it.new_partition })
      it.partition = it.new_partition
      -- A move is no event, and waits for the log by those who count waiting tasks.
      notify('log')
    end
    if it.finished then finish(it, f) else enter_status(it) end
    if it.retried then count_outcome(it.name, 'r') end
  else
    store_record(it)
  end
  if it.lost_owner and not is_service(f) then call('HINCRBY', META, 'reclaims', 1) end
  if it.deletes_commands or it.finished then
    call('ZREMRANGEBYLEX', COMMANDS, '[' .. it.tid .. ':', '(' .. it.tid .. ';')
  end
  for j = 1, #it.replies do
    call('ZADD', TASK_MESSAGES, '0', it.tid .. '.ctrl_out:' .. digits(take_ids(1)) .. ':' .. it.replies[j])
    notify('queue')
  end
  -- Chained tasks are submitted with the end of their attempt, in order.
  for _, packed in ipairs(it.submits_chained and chained or {}) do
    local tids = submit(cmsgpack.unpack(packed))
    submitted = submitted + #tids
  end
end
