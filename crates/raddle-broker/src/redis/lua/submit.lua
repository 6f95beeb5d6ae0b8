-- Stores tasks, all of them, and for `submit_own` the worker that is to run the only one.
-- KEYS: the stream of each partition. ARGV: the number of partitions, their names; the number of tasks, how many arguments each has, and
-- these: its spec, as it is stored, is the last. With two, its partition comes before it; with five its partition, when it is due ('' or
-- microseconds from now, or '@' and the microsecond), the same in nanoseconds, and its unique key.
-- Then '', or 'again', the finished task that is submitted once more, and 'dead' if it has to be a dead letter, or 'own' and the worker that is to run the only task: its info
-- and its lease.
local nparts = tonumber(ARGV[FIRST])
local parts, at = {}, FIRST + nparts + 2
for i = 1, nparts do
  parts[i] = ARGV[FIRST + i]
end
local n, each = tonumber(ARGV[at - 1]), tonumber(ARGV[at])
local M = at + n * each + 1
-- How many workers a batch wakes for one partition: each that finds more than it takes wakes another.
local RINGS = 4
local mode = ARGV[M]
if mode == 'again' and ARGV[M + 2] == 'dead' and call('SISMEMBER', DEAD, ARGV[M + 1]) == 0 then return answer({}) end

-- Which of them are new; one that is not is answered with the id of the task that has its key.
local new, existing, mine = 0, {}, {}
local places = nil
if each == 5 then
  places = {}
  for i = 1, n do
    local key = ARGV[at + i * 5 - 1]
    local holder = nil
    if key ~= '' then
      holder = mine[key] or call('HGET', UNIQUES, key) or nil
    end
    if holder then
      existing[#existing + 1] = i
      existing[#existing + 1] = holder
    else
      if key ~= '' then mine[key] = -new end
      places[i] = new
      new = new + 1
    end
  end
else
  new = n
end
if new == 0 then
  return answer({ '', existing, {}, '', '', 0 })
end
if mode == 'again' then
  -- The old one has been seen to.
  local tid = ARGV[M + 1]
  call('SREM', DEAD, tid)
  local done = call('HGET', DONE, tid)
  if done then
    local state, rest = string.match(done, '^(%d+) %d (.*)$')
    call('HSET', DONE, tid, state .. ' 0 ' .. rest)
  end
end

local s, c = take_ids(new)
for i = 2, #existing, 2 do
  if type(existing[i]) == 'number' then
    existing[i] = digits(id_after(s, c, -existing[i]))
  end
end
-- Partitions that nobody has heard of get their group, and workers are told of them by the caller.
local fresh, ready = {}, {}
local heard = call('SMISMEMBER', PARTS, unpack(parts))
for p = 1, nparts do
  ready[p] = 0
  if heard[p] == 0 then
    local made = redis.pcall('XGROUP', 'CREATE', KEYS[FIXED + p], 'raddle', '0', 'MKSTREAM')
    if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
    fresh[#fresh + 1] = parts[p]
  end
end
call_many('SADD', PARTS, fresh)
call('XADD', BORN, stream_id(s, c), 'n', int(new))
ring('log')

local specs, records, keys, order, line = {}, {}, {}, {}, {}
local owner, claimed = '', ''
-- All but the last digits are the same for nearly all of them.
local low = s % 10000000 * 4096 + c
local high, rest = int(floor(s / 10000000) * 4096 + floor(low / 10000000)), low % 10000000
local at_spec = 0
-- The run that is being made.
local run_part, run_tid, run_first, run_n = nil, nil, 0, 0
local function end_run()
  if run_part then
    local k = #order
    order[k + 1], order[k + 2] = '0', in_order(run_part, run_tid, run_n)
    line[k + 1], line[k + 2] = '0', in_line(run_part, run_tid, run_n)
  end
end
for i = 1, n do
  local offset = i - 1
  if places then offset = places[i] end
  if offset then
    local a = at + i * each
    local p = each == 1 and 1 or tonumber(ARGV[a - each + 1])
    local part, spec = parts[p], ARGV[a]
    local tid
    if rest + offset < 10000000 then
      tid = fmt('%s%07d', high, rest + offset)
    else
      tid = digits(id_after(s, c, offset))
    end
    specs[at_spec + 1], specs[at_spec + 2] = tid, spec
    at_spec = at_spec + 2
    local key, run_at, due_ns = '', nil, nil
    if each == 5 then
      local due = ARGV[a - 3]
      due_ns, key = ARGV[a - 2], ARGV[a - 1]
      if due ~= '' then
        if string.sub(due, 1, 1) == '@' then
          run_at = tonumber(string.sub(due, 2))
        else
          run_at = now_us + tonumber(due)
          due_ns = int(run_at) .. '000'
        end
      end
      if key ~= '' then
        keys[#keys + 1] = key
        keys[#keys + 1] = tid
      end
    end
    if run_at and run_at > now_us then
      local _, ttl = head(spec)
      records[#records + 1] = tid
      records[#records + 1] = record({ 'd', 0, 0, 0, part, '-', '-', '-', 0, due_ns, ttl, key })
      delay(tid, part, int(run_at), KEYS[FIXED + p])
      count('d', 1)
    elseif mode == 'own' then
      claimed = tid
    else
      if run_part ~= part or run_first + run_n ~= offset then
        end_run()
        run_part, run_tid, run_first, run_n = part, tid, offset, 0
      end
      run_n = run_n + 1
      ready[p] = ready[p] + 1
    end
  end
end
call_many('HSET', SPEC, specs)
call_many('HSET', TASK, records)
call_many('HSET', UNIQUES, keys)
end_run()
call_many('ZADD', ORDER, order)
call_many('ZADD', LINE, line)
-- Where nobody waits, nobody has to be woken.
local idle = call('HLEN', IDLE)
for p = 1, nparts do
  waits(parts[p], ready[p])
  for _ = 1, math.min(ready[p], RINGS, idle) do
    wake(KEYS[FIXED + p])
  end
end
if mode == 'own' then
  owner = enter_own(ARGV[M + 1], tonumber(ARGV[M + 2]))
  if claimed ~= '' then give(owner, claimed, specs[2], '-') end
end
return answer({ stream_id(s, c), existing, fresh, owner, claimed, idle })
