-- Stands before `finish.lua`, for attempts that have chained something: submits that with their end.
-- KEYS: besides those of output, the streams of all partitions that the tasks are in. ARGV: each attempt has eight arguments. The last is what
-- there is of what it has chained, as the caller read it: from that it knows the partitions.
local streams = {}
for i = FIXED + 1, #KEYS do
  local part = string.match(KEYS[i], '}:ready:(.+)$')
  if part then streams[part] = KEYS[i] end
end
-- How many workers are woken for one partition, as `submit.lua` does.
local RINGS = 4
local chains = {}

-- Notes that an attempt succeeds, if what it has chained is what the caller knows of.
local function follow(tid, account)
  if call('HGET', CHAINED, tid) ~= account then return false end
  chains[#chains + 1] = { tid = tid, account = account }
  return true
end

-- What was chained, in order: each task is its partition, when it is due ('' or microseconds from now, or '@' and the microsecond), the same in
-- nanoseconds, its unique key, its spec as it is stored, and when it expires, as `expires_in` reads it.
local function chained_tasks()
  local tasks = {}
  for _, chain in ipairs(chains) do
    for _, packed in ipairs(call_many('HMGET', CHAINED, chained_fields(chain.tid, chain.account))) do
      for _, task in ipairs(cmsgpack.unpack(packed)) do
        tasks[#tasks + 1] = task
      end
    end
    unchain(chain.tid)
  end
  return tasks
end

local function follow_up()
  -- One whose key is taken is not submitted: the task that has it stands for it.
  local new, mine = {}, {}
  for _, task in ipairs(chained_tasks()) do
    local key = task[4]
    if key == '' or not (mine[key] or call('HGET', UNIQUES, key)) then
      if key ~= '' then mine[key] = true end
      new[#new + 1] = task
    end
  end
  if #new == 0 then return end
  local s, c = take_ids(#new)
  call('XADD', BORN, stream_id(s, c), 'n', int(#new))
  ring('log')
  local specs, records, keys, ready, expiring = {}, {}, {}, {}, {}
  -- The run that is being made.
  local run_part, run_tid, run_n = nil, nil, 0
  local function end_run()
    if run_part then line_up(run_part, run_tid, run_n) end
    run_part, run_n = nil, 0
  end
  for i = 1, #new do
    local part, due, due_ns, key, spec, lifetime = unpack(new[i])
    local tid = digits(id_after(s, c, i - 1))
    specs[2 * i - 1], specs[2 * i] = tid, spec
    if key ~= '' then
      keys[#keys + 1] = key
      keys[#keys + 1] = tid
    end
    local expires = expires_in(lifetime)
    if expires then
      expiring[#expiring + 1] = expires
      expiring[#expiring + 1] = tid
    end
    local run_at = nil
    if string.sub(due, 1, 1) == '@' then
      run_at = tonumber(string.sub(due, 2))
    elseif due ~= '' then
      run_at = now_us + tonumber(due)
      due_ns = int(run_at) .. '000'
    end
    if run_at and run_at > now_us then
      end_run()
      local _, ttl = head(spec)
      records[#records + 1] = tid
      records[#records + 1] = record({ 'd', 0, 0, 0, part, '-', '-', '-', 0, due_ns, ttl, key })
      delay(tid, part, int(run_at), streams[part])
      count('d', 1)
    else
      if run_part ~= part then
        end_run()
        run_part, run_tid = part, tid
      end
      run_n = run_n + 1
      ready[part] = (ready[part] or 0) + 1
    end
  end
  end_run()
  call_many('HSET', SPEC, specs)
  call_many('HSET', TASK, records)
  call_many('HSET', UNIQUES, keys)
  note_expiries(expiring)
  local idle = call('HLEN', IDLE)
  for part, n in pairs(ready) do
    waits(part, n)
    for _ = 1, math.min(n, RINGS, idle) do
      wake(streams[part])
    end
  end
end
