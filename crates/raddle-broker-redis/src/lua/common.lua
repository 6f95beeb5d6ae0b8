-- What scripts share. A script gets the paragraphs that it uses, directly or by others, and those
-- that define nothing: making a function costs as much as a command. ARGV[1] is the prefix of all
-- keys and channels, which share one hash tag; ARGV[2] the field for the stored reply, or '';
-- ARGV[3] the number of the call. The fixed keys are defined in capitals.
local call, fmt, floor = redis.call, string.format, math.floor
local PREFIX, FIRST = ARGV[1], 4

-- Kinds of events, numbered as in `TaskEventKind`.
local SPAWNING, RUNNING, COMPLETED, STALE, CONTROL_IGNORED, OUTPUT_LOST = '1', '2', '3', '13', '14', '15'

-- A call whose reply was lost is sent again under the same number, and gets the stored reply.
-- Replies are fields beside the clock, because a key with a time to live costs as much as three
-- fields. Within a field numbers only grow: a smaller one belongs to a call that was given up long
-- ago.
local clock, stored = unpack(call('HMGET', META, 'clock', ARGV[2]))
local number = tonumber(ARGV[3])

-- A server that is out of memory refuses commands that may need more, unless the script has written
-- before. Scripts that keep accepted tasks alive, or finish them, begin with a write that needs no
-- memory.
local function write_without_memory()
  call('DEL', KEYS[2])
end

if stored then
  local last = struct.unpack('<d', stored)
  if last == number then return cmsgpack.unpack(string.sub(stored, 17)) end
  if last > number then return redis.error_reply('RADDLE a finished call was sent again') end
end

-- The clock. Numbers are doubles, exact up to 2^53, so an id is a slot of 4096 ns and a counter.
-- Stored as bytes, which parse ten times as fast as digits.
local time = call('TIME')
local sec, usec = tonumber(time[1]), tonumber(time[2])
local now_us = sec * 1000000 + usec
local now_ms = floor(now_us / 1000)
local slot, counter = 0, 0
if clock then
  slot, counter = struct.unpack('<dd', clock)
end
local ids_taken = false

local function int(number)
  return fmt('%d', number)
end

-- Takes `n` consecutive ids and returns the first.
local function take_ids(n)
  local now = floor(sec * 1953125 / 8 + usec * 125 / 512)
  if now > slot then
    slot, counter = now, 0
  else
    counter = counter + 1
    slot, counter = slot + floor(counter / 4096), counter % 4096
  end
  local first_slot, first_counter = slot, counter
  local to = counter + n - 1
  slot, counter, ids_taken = slot + floor(to / 4096), to % 4096, true
  return first_slot, first_counter
end

-- The id `i` places after another.
local function id_after(s, c, i)
  c = c + i
  return s + floor(c / 4096), c % 4096
end

-- An id as a stream entry id.
local function stream_id(s, c)
  return fmt('%d-%d', s, c)
end

-- An id as 19 digits, computed in two limbs.
local function digits(s, c)
  local high, low = floor(s / 10000000), s % 10000000 * 4096 + c
  return fmt('%d%07d', high * 4096 + floor(low / 10000000), low % 10000000)
end

-- Calls `name` with many arguments, in portions that fit the Lua stack. Returns the items of all
-- replies, or their sum. Numbers are formatted here: the server's own conversion is exact for every
-- fraction, and slow.
local function call_many(name, key, args)
  local from, all, sum = 1, {}, 0
  while from <= #args do
    local to = math.min(from + 1999, #args)
    local answer = call(name, key, unpack(args, from, to))
    if type(answer) == 'table' then
      for i = 1, #answer do
        all[#all + 1] = answer[i]
      end
    elseif type(answer) == 'number' then
      sum = sum + answer
    end
    from = to + 1
  end
  return all, sum
end

-- What `answer` does at the end: notifications and counters are collected, and written once.
local at_end = {}

local topics = {}
at_end[#at_end + 1] = function()
  for topic in pairs(topics) do
    call('PUBLISH', PREFIX .. 'notify:' .. topic, '')
  end
end
local function notify(topic)
  topics[topic] = true
end

-- Appends messages to a queue and returns their ids. A queue is four arguments from `a` on: its
-- key, the prefix of its members, its name if it must be listed, and a mark if it takes control
-- messages.
local function append(a, bodies)
  local queue, prefix, name, mark = unpack(ARGV, a, a + 3)
  local s, c = take_ids(#bodies)
  local ids, members = {}, {}
  for i = 1, #bodies do
    ids[i] = digits(id_after(s, c, i - 1))
    members[2 * i - 1], members[2 * i] = 0, prefix .. ids[i] .. ':' .. bodies[i]
  end
  call_many('ZADD', queue, members)
  if name ~= '' then call('SADD', QUEUES, name) end
  notify('queue')
  if mark ~= '' then notify('control') end
  return ids
end

-- The microsecond at which a task expires: '-' for never, microseconds from now, or '@' and the
-- microsecond.
local function expires_in(word)
  if word == '-' then return nil end
  local at = string.match(word, '^@(.*)$')
  return int(at and tonumber(at) or now_us + tonumber(word))
end

-- Stores when tasks expire: pairs of microsecond and id. Schedulers that wait for the first must
-- learn of an earlier one.
local function store_expiries(members)
  if #members == 0 then return end
  local first = call('ZRANGE', EXPIRIES, 0, 0)[1]
  call_many('ZADD', EXPIRIES, members)
  if call('ZRANGE', EXPIRIES, 0, 0)[1] ~= first then notify('control') end
end

-- Counts tasks by queue and status: that of a record, or the number of a final state. Every change
-- of status counts, so that nothing must be scanned to count tasks.
local counts = {}
at_end[#at_end + 1] = function()
  for status, of in pairs(counts) do
    for partition, by in pairs(of) do
      if by ~= 0 then call('HINCRBY', COUNTERS, status .. string.match(partition, '|[^|]*'), by) end
    end
  end
end
local function count(status, partition, by)
  local of = counts[status]
  if not of then
    of = {}
    counts[status] = of
  end
  of[partition] = (of[partition] or 0) + by
end

-- Counts what became of a task called `name` in this minute: 's' submitted, a number the bucket of
-- the time that it waited, the number of its final state as text, 'x' and a bucket how long it ran,
-- 'r' retried. Outcomes are kept for 72 hours in a hash per minute. It has a field for each count,
-- where the bucket of a wait follows a 'w', and for each name one that begins with '#'. Beyond some
-- names, the rest is counted as 'other'.
local outcomes = {}
at_end[#at_end + 1] = function()
  local key = PREFIX .. 'outcomes:' .. int(floor(sec / 60))
  for name, of in pairs(outcomes) do
    for what, n in pairs(of) do
      if type(what) == 'number' then what = 'w' .. what end
      local field = what .. ' ' .. name
      if call('HINCRBY', key, field, n) == n then
        call('EXPIRE', key, 72 * 3600 + 60)
        if call('HSETNX', key, '# ' .. name, '') == 1 and call('HINCRBY', key, '#', 1) > 200 then
          call('HINCRBY', key, '#', -1)
          call('HDEL', key, field, '# ' .. name)
          call('HINCRBY', key, what .. ' other', n)
        end
      end
    end
  end
end
local function count_outcome(name, what)
  local of = outcomes[name]
  if not of then
    of = {}
    outcomes[name] = of
  end
  of[what] = (of[what] or 0) + 1
end

-- The microsecond in which a task was submitted.
local function submitted_at(tid)
  return tonumber(string.sub(tid, 1, 16))
end

-- The bucket of a duration in microseconds, as `Histogram::bucket` numbers them: the bounds are 1,
-- 2, 5, 10 milliseconds and so on, and a rounded logarithm leads to the same one.
local function bucket(micros)
  if micros <= 1000 then return 0 end
  local decade = floor(math.log10(micros / 1000))
  local unit = 1000 * 10 ^ decade
  return math.min(24, 3 * decade + (micros <= unit and 0 or micros <= 2 * unit and 1 or micros <= 5 * unit and 2 or 3))
end

-- The queue of a partition, with the separator before it.
local function queue_of(partition)
  return string.match(partition, '|[^|]*')
end

-- Adds an entry to the log, which stands for one event of each of its tasks (a list of
-- "tid:attempt"), with consecutive ids. Returns the first id, and the id of the entry for the
-- records of its tasks.
local function event(kind, worker, tasks, detail)
  if #tasks == 0 then return end
  local s, c = take_ids(#tasks)
  local entry = stream_id(s, c)
  call('XADD', LOG, entry, 'k', kind, 'w', worker, 't', table.concat(tasks, ' '), 'd', detail or '')
  notify('log')
  return s, c, entry
end

-- Adds entries of the log to the list in a record. A list that is too long loses its oldest
-- entries and begins with '+': readers then scan the log up to the first that is left.
local MAX_EVENTS, KEPT_EVENTS = 1600, 1200
local function add_events(events, entries)
  if not entries then return events end
  if events == '-' then return entries end
  events = events .. ',' .. entries
  if #events > MAX_EVENTS then events = '+' .. string.match(events, ',(.*)$', #events - KEPT_EVENTS) end
  return events
end

-- A record: status, attempt, failures, losses, partition, owner, claimed at, pid, flags, run at,
-- ttl, microsecond since when it is ready ('-' for its creation), entries in the log, name, unique
-- key. Flags are added up: 1 paused, 2 has chained tasks, 4 or 8 its worker received a stop or kill
-- command. Status: r(eady) d(elayed) p(aused) s(pawning) x (running). A task that was only ever
-- ready has no record.
local RECORD_PATTERN = '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$'

local function fields(text)
  local f = { string.match(text, RECORD_PATTERN) }
  if #f == 0 then error('RADDLE a record cannot be read: ' .. text) end
  return f
end

local function record(f)
  return table.concat(f, ' ')
end

local function is_active(f)
  return f[1] == 's' or f[1] == 'x'
end

-- A finished task: state, dead letter, owner, attempt, failures, losses, finished at, service,
-- entries in the log, then the report. Splits the text around the entries.
local function split_finished(done)
  return string.match(done, '^(%S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ )(%S+)(\n.*)$')
end

-- Workers are tasks without a partition. They are not counted, and end only by leaving the
-- registry.
local function is_service(f)
  return f[5] == '-'
end

-- The header of a stored spec: partition, ttl, parent, name, unique key.
local function head(spec)
  return string.match(spec, '^(%S+) (%S+) (%S+) (%S+) ([^\n]*)\n')
end

-- The record of a task's first claim, whose event is in this entry of the log.
local function initial_record(spec, owner, entry)
  local partition, ttl, _, name, key = head(spec)
  return 's 1 0 0 ' .. partition .. ' ' .. owner .. ' ' .. int(now_us) .. ' - 0 - ' .. ttl .. ' - ' .. entry .. ' ' .. name .. ' ' .. key
end

-- Adds entries of the log to the stored record of a task.
local function add_to_record(tid, entries)
  local rec, done, spec = call('HGET', RECORDS, tid), call('HGET', FINISHED, tid), call('HGET', SPECS, tid)
  if done then
    local before, events, after = split_finished(done)
    call('HSET', FINISHED, tid, before .. add_events(events, entries) .. after)
  elseif rec then
    local f = fields(rec)
    f[13] = add_events(f[13], entries)
    call('HSET', RECORDS, tid, record(f))
  elseif spec then
    local partition, ttl, _, name, key = head(spec)
    call('HSET', RECORDS, tid, record({ 'r', 0, 0, 0, partition, '-', '-', '-', 0, '-', ttl, '-', entries, name, key }))
  end
end

-- Adds an event of one task. The script that writes the record of the task takes the entry by
-- `take_logged`; `answer` adds those that are left to the stored record.
local logged = {}
at_end[#at_end + 1] = function()
  for tid, entries in pairs(logged) do
    add_to_record(tid, entries)
  end
end
local function event_of_one(kind, worker, tid, attempt, detail)
  local _, _, entry = event(kind, worker, { tid .. ':' .. attempt }, detail)
  logged[tid] = add_events(logged[tid] or '-', entry)
end

local function take_logged(tid, events)
  local entries = logged[tid]
  logged[tid] = nil
  return add_events(events, entries)
end

-- The flag of an attempt that has chained tasks.
local CHAINS = 2

local function has_flag(flags, flag)
  return floor(tonumber(flags) / flag) % 2 == 1
end

-- The number of stored control messages of a task.
local function count_commands(tid)
  return call('ZLEXCOUNT', COMMANDS, '[' .. tid .. ':', '(' .. tid .. ';')
end

-- Refuses a write of a stale attempt.
local function refuse(tid, attempt)
  call('HINCRBY', META, 'stale_writes', 1)
  if call('HEXISTS', SPECS, tid) == 1 then
    event_of_one(STALE, '', tid, attempt)
  end
end

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

-- Leases do not expire while no worker calls: no worker can renew one at a server that is down or
-- suspended, and none takes over. After a silence of this many milliseconds, every lease that had
-- not expired before is extended by the silence.
local MIN_SILENCE = 2000
local function extend_leases(silence)
  local last = tonumber(call('HGET', META, 'last_heartbeat') or now_ms)
  if now_ms - last < silence then return end
  local workers = call('ZRANGEBYSCORE', LEASES, int(last), '+inf', 'WITHSCORES')
  for i = 1, #workers, 2 do
    call('ZADD', LEASES, int(tonumber(workers[i + 1]) + now_ms - last), workers[i])
  end
  call('HSET', META, 'last_heartbeat', int(now_ms))
end

-- Whether the lease of a worker that has just called holds.
local function has_lease(worker)
  local lease = call('ZSCORE', LEASES, worker)
  if lease and tonumber(lease) < now_ms then
    extend_leases(MIN_SILENCE)
    lease = call('ZSCORE', LEASES, worker)
  end
  return lease and tonumber(lease) >= now_ms
end

local function renew_lease(worker, ttl_ms)
  call('ZADD', LEASES, int(now_ms + ttl_ms), worker)
  call('HSET', META, 'last_heartbeat', int(now_ms))
end

local function remove_worker(worker)
  call('HDEL', WORKERS, worker)
  call('HDEL', HEARTBEATS, worker)
  call('ZREM', LEASES, worker)
  call('DEL', PREFIX .. 'wake:worker:' .. worker, PREFIX .. 'worker:' .. worker)
end

-- Registers an ephemeral worker, which has no task record.
local function register_ephemeral(info, ttl_ms)
  local tid = digits(take_ids(1))
  call('HSET', WORKERS, tid, info)
  renew_lease(tid, ttl_ms)
  call('SADD', EPHEMERAL_WORKERS, tid)
  return tid
end

-- Removes an ephemeral worker. Others stay.
local function remove_ephemeral(owner)
  if call('SREM', EPHEMERAL_WORKERS, owner) == 1 then remove_worker(owner) end
end

-- Appends to the output of an attempt ("task:attempt:stream") as much as there is room for. The
-- first truncation is an event; a field in OUTPUT marks that it is logged, because a stream of
-- exactly `cap` bytes is as long as a truncated one.
local function append_output(field, bytes, cap)
  local key = PREFIX .. 'live_output:' .. field
  local room = tonumber(cap) - call('STRLEN', key)
  if room > 0 then call('APPEND', key, string.sub(bytes, 1, room)) end
  if #bytes > room and call('HSETNX', OUTPUT, field .. ':cut', '') == 1 then
    local attempt, stream = string.match(field, '^(.*):(%d)$')
    local name = stream == '0' and 'standard output' or 'standard error'
    local detail = 'only the first ' .. cap .. ' bytes of ' .. name .. " are kept: 'max_output' in the queue URL of its worker sets how many"
    event_of_one(OUTPUT_LOST, '', string.sub(attempt, 1, 19), string.sub(attempt, 21), detail)
  end
end

-- The end of every script: writes counters and notifications, and stores the reply with the current
-- second.
local function answer(reply, remembered)
  for i = 1, #at_end do
    at_end[i]()
  end
  local changed = {}
  if ids_taken then
    changed = { 'clock', struct.pack('<dd', slot, counter) }
  end
  if ARGV[2] ~= '' then
    changed[#changed + 1] = ARGV[2]
    changed[#changed + 1] = struct.pack('<dd', number, sec) .. cmsgpack.pack(remembered or reply)
  end
  if #changed > 0 then call('HSET', META, unpack(changed)) end
  return reply
end
