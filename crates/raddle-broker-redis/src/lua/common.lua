-- The beginning of every script. ARGV[1] is the prefix of all keys and channels of the namespace, which have one hash tag, ARGV[2] where
-- the answer is remembered, if it is, and ARGV[3] the number of the call. Keys that always exist have their names in capitals.
local call, fmt, floor = redis.call, string.format, math.floor
local PREFIX, FIRST = ARGV[1], 4

-- Kinds of events, as `EventKind` numbers them.
local SPAWNING, RUNNING, COMPLETED, STALE, CONTROL_IGNORED, OUTPUT_LOST = '1', '2', '3', '13', '14', '15'

-- A call whose answer was lost is sent again under the same number, and gets the answer of the first time. It is kept beside the clock,
-- because a key of its own with a time to live costs as much as three fields.
-- Within a slot numbers only grow: what comes under a smaller one was given up long ago, and sent again since.
local clock, said = unpack(call('HMGET', META, 'clock', ARGV[2]))
local number = tonumber(ARGV[3])

-- A server that is out of memory refuses commands that may need more of it, unless the script has written before. Scripts that keep alive what was
-- accepted, or bring it to its end, begin with a write that needs none.
local function write_without_memory()
  call('DEL', KEYS[2])
end

if said then
  local last = struct.unpack('<d', said)
  if last == number then return cmsgpack.unpack(string.sub(said, 17)) end
  if last > number then return redis.error_reply('RADDLE a call that is over was made again') end
end

-- The clock. Numbers are doubles here, exact up to 2^53: an id is kept as its slot of 4096 ns and a counter. As bytes, which take a tenth of
-- the time that digits take.
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

-- Takes `n` ids in a row and returns the first.
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

-- The id `i` after another.
local function id_after(s, c, i)
  c = c + i
  return s + floor(c / 4096), c % 4096
end

-- An id as it stands in a stream.
local function stream_id(s, c)
  return fmt('%d-%d', s, c)
end

-- An id as people see it: its 19 digits, in two limbs.
local function digits(s, c)
  local high, low = floor(s / 10000000), s % 10000000 * 4096 + c
  return fmt('%d%07d', high * 4096 + floor(low / 10000000), low % 10000000)
end

-- Numbers go to the server as text that is made here: what it makes of them itself is exact for every fraction, and slow.
-- Calls `name` with many arguments, in portions that fit the stack. Gives the items of all answers, or their sum.
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

-- Bells are brought together, and rung once at the end; counters are written then.
local bells, counts = {}, {}
local function ring(topic)
  bells[topic] = true
end

-- A queue as four arguments from `a` on: its key, what its members begin with, its name if it is one of its own, and a mark if it is for
-- control words. `append` adds messages to it and gives their ids.
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
  ring('queue')
  if mark ~= '' then ring('control') end
  return ids
end

-- The microsecond in which a task expires: '-' is never, then microseconds from now, or '@' and the microsecond.
local function expires_in(word)
  if word == '-' then return nil end
  local at = string.match(word, '^@(.*)$')
  return int(at and tonumber(at) or now_us + tonumber(word))
end

-- Notes when tasks expire: each is its microsecond and its id. Whoever waits for the next has to know of one that does so sooner.
local function note_expiries(members)
  if #members == 0 then return end
  local first = call('ZRANGE', EXPIRING, 0, 0)[1]
  call_many('ZADD', EXPIRING, members)
  if call('ZRANGE', EXPIRING, 0, 0)[1] ~= first then ring('control') end
end

-- What is claimed and has not begun is not counted: it is in `owned` and does not run.
local function count(what, by)
  counts[what] = (counts[what] or 0) + by
end

-- One entry of the log stands for one event of each of its tasks: "tid:attempt tid:attempt …". Their ids follow each other. Returns the first.
local function event(kind, worker, tasks, n, detail)
  if n == 0 then return end
  local s, c = take_ids(n)
  call('XADD', LOG, stream_id(s, c), 'k', kind, 'w', worker, 't', tasks, 'd', detail or '')
  ring('log')
  return s, c
end

-- A record: place, attempt, failures, losses, partition, owner, claimed at, process, flags, run at, ttl, unique key. Flags
-- are a number: 1 for one that stands still on request, 2 more if its attempt has chained anything, and 4 or 8 more if its worker was told to
-- stop or to kill it.
-- Places: r(eady) d(elayed) h(eld) s(pawning) x (running). A task that has never been anything but ready has no record.
local RECORD = '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$'
local function fields(record)
  local f = { string.match(record, RECORD) }
  if #f == 0 then error('RADDLE a record cannot be read: ' .. record) end
  return f
end
local function record(f)
  return table.concat(f, ' ')
end
local function is_active(f)
  return f[1] == 's' or f[1] == 'x'
end
-- Workers are tasks without a partition. They are not counted, and end by leaving the registry alone.
local function is_service(f)
  return f[5] == '-'
end

-- The head of a stored spec: partition, ttl, parent, unique key.
local function head(spec)
  return string.match(spec, '^(%S+) (%S+) (%S+) ([^\n]*)\n')
end

-- The record of a task that is claimed for the first time.
local function first_record(spec, owner)
  local part, ttl, _, key = head(spec)
  return 's 1 0 0 ' .. part .. ' ' .. owner .. ' ' .. int(now_us) .. ' - 0 - ' .. ttl .. ' ' .. key
end

-- The flag of an attempt that has chained tasks.
local CHAINS = 2
local function has_flag(flags, flag)
  return floor(tonumber(flags) / flag) % 2 == 1
end

-- The number of control words that wait for a task.
local function words_of(tid)
  return call('ZLEXCOUNT', WORDS, '[' .. tid .. ':', '(' .. tid .. ';')
end

-- Refuses a write of an attempt that is not the latest any more.
local function refuse(tid, attempt)
  call('HINCRBY', META, 'stale', 1)
  if call('HEXISTS', SPEC, tid) == 1 then
    event(STALE, '', tid .. ':' .. attempt, 1)
  end
end

-- A task that can be claimed is a member of LINE, its partition and its id: a range for each partition, the oldest first. How many wait is
-- counted by queue, under its name behind a bar.
local function waits(part, by)
  count(string.match(part, '|[^|]*'), by)
end
local function line_up(part, tid)
  call('ZADD', LINE, '0', part .. ' ' .. tid)
  waits(part, 1)
end
local function leave_line(part, tid)
  if call('ZREM', LINE, part .. ' ' .. tid) == 1 then waits(part, -1) end
end

-- Wakes workers that block in `BLPOP` on the list of a partition ('ready:' and its name), or one worker alone ('wake:' and its id). An
-- element only says that it is worth looking, and a claim that leaves a task wakes the next worker: a few are enough.
local BELLS = 4
local function wake(list, n)
  for _ = 1, math.min(n or 1, BELLS - call('LLEN', PREFIX .. list)) do
    call('RPUSH', PREFIX .. list, '')
  end
end

-- Every worker that waits looks at least this often, in microseconds, and learns then what is due before it looks again. Only what is due
-- sooner has to be told.
local LOOKS = 2100000
local function delay(tid, part, due)
  call('ZADD', DELAYED, due, tid .. ' ' .. part)
  if due - now_us < LOOKS and call('ZRANGE', DELAYED, 0, 0)[1] == tid .. ' ' .. part then wake('ready:' .. part) end
end

-- Makes those partitions that are not there yet, and wakes all workers, which wait on the partitions that they know of.
local function open_parts(parts)
  local _, made = call_many('SADD', PARTS, parts)
  if made == 0 then return end
  for _, worker in ipairs(call('HKEYS', WORKERS)) do
    wake('wake:' .. worker)
  end
end

-- Stores tasks. Each is its partition and its spec as it is stored; with a unique key, a time or a lifetime also its unique key, when it is
-- due ('' for now, or microseconds from now, or '@' and the microsecond), the same in nanoseconds, when it expires, as `expires_in` reads
-- it, and its batch if it has one. Returns their ids: behind '=' that of the task which has the unique key already. With `own`, one that is due is not put in line, and its
-- id is returned besides.
local function submit(tasks, own)
  local new, tids, taken, parts, ready = {}, {}, {}, {}, {}
  for i, task in ipairs(tasks) do
    local part, key = task[1], task[3] or ''
    local holder = key ~= '' and (taken[key] or call('HGET', UNIQUES, key))
    if holder then
      -- One that has the key of another in the same batch stands for that one.
      tids[i] = holder
    else
      new[#new + 1] = i
      if key ~= '' then taken[key] = i end
      if not ready[part] then
        ready[part] = 0
        parts[#parts + 1] = part
      end
    end
  end
  if #new > 0 then
    open_parts(parts)
    local s, c = take_ids(#new)
    for n, i in ipairs(new) do
      tids[i] = digits(id_after(s, c, n - 1))
    end
    call('XADD', BORN, stream_id(s, c), 'n', int(#new))
    ring('log')
  end
  local specs, records, keys, line, expiring, batches, due_now = {}, {}, {}, {}, {}, {}, nil
  for n, i in ipairs(new) do
    local tid = tids[i]
    local part, spec, key, due, due_ns, lifetime, batch = unpack(tasks[i])
    specs[2 * n - 1], specs[2 * n] = tid, spec
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
        expiring[#expiring + 1] = expires
        expiring[#expiring + 1] = tid
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
      records[#records + 1] = record({ 'd', 0, 0, 0, part, '-', '-', '-', 0, due_ns, ttl, key })
      delay(tid, part, int(run_at))
      count('d', 1)
    elseif own then
      due_now = tid
    else
      line[#line + 1] = '0'
      line[#line + 1] = part .. ' ' .. tid
      ready[part] = ready[part] + 1
    end
  end
  call_many('HSET', SPEC, specs)
  call_many('HSET', TASK, records)
  call_many('HSET', UNIQUES, keys)
  call_many('ZADD', LINE, line)
  call_many('ZADD', BATCHES, batches)
  note_expiries(expiring)
  for part, n in pairs(ready) do
    if n > 0 then
      waits(part, n)
      wake('ready:' .. part, n)
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

-- Takes a task out of its batch, whose name is in its spec alone. To decode a spec takes time: most have none.
local function leave_batch(tid)
  local spec = call('HGET', SPEC, tid)
  if not spec or not string.find(spec, '"batch":"', 1, true) then return end
  local ok, decoded = pcall(cjson.decode, string.match(spec, '\n(.*)$'))
  if ok and decoded.batch then call('ZREM', BATCHES, decoded.batch .. ' ' .. tid) end
end

-- Leases run only while somebody is heard. Nobody can renew one with a server that is down or stands still, and nobody takes over: so when
-- there was silence for this long, in milliseconds, every lease that had not run out before goes on where it was then.
local SILENCE = 2000
local function forgive(silence)
  local last = tonumber(call('HGET', META, 'beat') or now_ms)
  if now_ms - last < silence then return end
  local workers = call('ZRANGEBYSCORE', LEASE, int(last), '+inf', 'WITHSCORES')
  for i = 1, #workers, 2 do
    call('ZADD', LEASE, int(tonumber(workers[i + 1]) + now_ms - last), workers[i])
  end
  call('HSET', META, 'beat', int(now_ms))
end

-- Whether the lease of a worker holds, which says by asking that it is alive.
local function has_lease(worker)
  local lease = call('ZSCORE', LEASE, worker)
  if lease and tonumber(lease) < now_ms then
    forgive(SILENCE)
    lease = call('ZSCORE', LEASE, worker)
  end
  return lease and tonumber(lease) >= now_ms
end

local function lease_out(worker, ttl_ms)
  call('ZADD', LEASE, int(now_ms + ttl_ms), worker)
  call('HSET', META, 'beat', int(now_ms))
end

local function leave_registry(worker)
  call('HDEL', WORKERS, worker)
  call('HDEL', BEATS, worker)
  call('ZREM', LEASE, worker)
  call('DEL', PREFIX .. 'wake:' .. worker, PREFIX .. 'worker:' .. worker)
end

-- Enters a worker that is there for one task alone. It is no task itself.
local function enter_own(info, ttl_ms)
  local tid = digits(take_ids(1))
  call('HSET', WORKERS, tid, info)
  lease_out(tid, ttl_ms)
  call('SADD', OWN, tid)
  return tid
end

-- Lets such a worker leave. One of another kind stays.
local function dismiss(owner)
  if call('SREM', OWN, owner) == 1 then leave_registry(owner) end
end

-- Adds to the output of an attempt: task, attempt and stream; as much as there is room for. The first bytes without room are one event: a
-- field in OUTPUT marks that it is logged, because a stream of exactly `cap` bytes is as long as one that was cut.
local function append_output(field, bytes, cap)
  local key = PREFIX .. 'out:' .. field
  local room = tonumber(cap) - call('STRLEN', key)
  if room > 0 then call('APPEND', key, string.sub(bytes, 1, room)) end
  if #bytes > room and call('HSETNX', OUTPUT, field .. ':cut', '') == 1 then
    local attempt, stream = string.match(field, '^(.*):(%d)$')
    local name = stream == '0' and 'standard output' or 'standard error'
    local detail = 'only the first ' .. cap .. ' bytes of ' .. name .. " are kept: 'max_output' in the queue URL of its worker sets how many"
    event(OUTPUT_LOST, '', attempt, 1, detail)
  end
end

-- The end of every script: what was put off is written, and the answer is remembered, with the second of it.
local function answer(reply, remembered)
  for what, by in pairs(counts) do
    if by ~= 0 then call('HINCRBY', COUNT, what, int(by)) end
  end
  for topic in pairs(bells) do
    call('PUBLISH', PREFIX .. 'bell:' .. topic, '')
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
