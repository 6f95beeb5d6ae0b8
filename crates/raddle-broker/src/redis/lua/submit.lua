-- Stores tasks, all of them, and for `submit_own` the worker that is to run the only one.
-- KEYS: stream, returned, delayed of each partition. ARGV: the number of partitions, their names; the number of tasks, and for each:
-- partition, when it is due ('' or microseconds from now, or '@' and the microsecond), the same in nanoseconds, unique key, stored spec.
-- Then '', or 'again' and the finished task that is submitted once more, or 'own' and the worker that is to run the only task: its info
-- and its lease.
local nparts = tonumber(ARGV[FIRST])
local parts, at = {}, FIRST + nparts + 1
for i = 1, nparts do
  parts[i] = ARGV[FIRST + i]
end
local n = tonumber(ARGV[at])
local M = at + n * 5 + 1
local mode = ARGV[M]
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

-- Which of them are new; one that is not is answered with the id of the task that has its key.
local new, existing, mine = 0, {}, {}
local places = {}
for i = 1, n do
  local key = ARGV[at + (i - 1) * 5 + 4]
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
if new == 0 then
  return answer({ '', existing, {}, '', '' })
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
    local made = redis.pcall('XGROUP', 'CREATE', KEYS[FIXED + p * 3 - 2], 'raddle', '0', 'MKSTREAM')
    if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
    fresh[#fresh + 1] = parts[p]
  end
end
call_many('SADD', PARTS, fresh)
call('XADD', BORN, stream_id(s, c), 'n', new)
ring('log')

local specs, records, keys = {}, {}, {}
local owner, claimed = '', ''
for i = 1, n do
  local offset = places[i]
  if offset then
    local a = at + (i - 1) * 5
    local p, due, due_ns, key, spec = tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
    local ts, tc = id_after(s, c, offset)
    local tid = digits(ts, tc)
    local part, stream = parts[p], KEYS[FIXED + p * 3 - 2]
    specs[#specs + 1] = tid
    specs[#specs + 1] = spec
    if key ~= '' then
      keys[#keys + 1] = key
      keys[#keys + 1] = tid
    end
    local run_at = nil
    if due ~= '' then
      if string.sub(due, 1, 1) == '@' then
        run_at = tonumber(string.sub(due, 2))
      else
        run_at = now_us + tonumber(due)
        due_ns = int(run_at) .. '000'
      end
    end
    if run_at and run_at > now_us then
      local _, ttl = head(spec)
      records[#records + 1] = tid
      records[#records + 1] = record({ 'd', 0, 0, 0, part, '-', '-', '-', 0, due_ns, ttl, key })
      local delayed = KEYS[FIXED + p * 3]
      call('ZADD', delayed, int(run_at), tid)
      count('d', 1)
      -- Whoever waits for work has to wait for this time too.
      if call('ZRANGE', delayed, 0, 0)[1] == tid then
        call('ZADD', DUE, int(run_at), part)
        nudge(stream)
      end
    elseif mode == 'own' then
      claimed = tid
    else
      call('XADD', stream, stream_id(ts, tc), 't', tid)
      ready[p] = ready[p] + 1
    end
  end
end
call_many('HSET', SPEC, specs)
call_many('HSET', TASK, records)
call_many('HSET', UNIQUES, keys)
local waiting, sums = call_many('HMGET', READY, parts), {}
for p = 1, nparts do
  if ready[p] > 0 then
    sums[#sums + 1] = parts[p]
    sums[#sums + 1] = int(tonumber(waiting[p] or 0) + ready[p])
  end
end
call_many('HSET', READY, sums)
if mode == 'own' then
  owner = enter_own(ARGV[M + 1], tonumber(ARGV[M + 2]))
  if claimed ~= '' then
    local part, ttl, _, key = head(specs[2])
    call('HSET', TASK, claimed, record({ 's', 1, 0, 0, part, owner, int(now_us), '-', 0, '-', ttl, key }))
    call('ZADD', OWNED, 0, owner .. ':' .. claimed)
    count('1', 1)
    event(SPAWNING, owner, claimed .. ':1', 1)
  end
end
return answer({ stream_id(s, c), existing, fresh, owner, claimed })
