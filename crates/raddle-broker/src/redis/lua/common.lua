-- What scripts begin with: of these pieces, set apart by empty lines, each script has those that it uses. All keys are declared. First come
-- those that are always the same, under their names in capitals, FIXED in all; those of partitions, output and the like follow. ARGV[1] is
-- the prefix of channels, ARGV[2] where the answer is remembered, if it is, and ARGV[3] the number of the call.
local call, fmt, floor = redis.call, string.format, math.floor
local FIRST = 4

-- Kinds of events, as `EventKind` numbers them.
local SPAWNING, RUNNING, COMPLETED, STALE = '1', '2', '3', '13'

-- A call whose answer was lost is sent again under the same number, and gets the answer of the first time. It is kept beside the clock,
-- because a key of its own with a time to live costs as much as three fields.
-- Within a slot numbers only grow: what comes under a smaller one was given up long ago, and sent again since.
local clock, said = unpack(call('HMGET', META, 'clock', ARGV[2]))
local number = tonumber(ARGV[3])
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
local bells, write_later = {}, nil
local function ring(topic)
  bells[topic] = true
end

-- Appends messages to a queue: what its members begin with, its name if it is one of its own, and a mark if it is for control words. Gives
-- their ids.
local function append(queue, prefix, name, mark, bodies)
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

-- What is claimed and has not begun is not counted: it is what somebody owns and does not run. Few are added to one by one, many in one go.
local FEW, counts = 4, {}
local function write_counts()
  local names, changed = {}, {}
  for what, by in pairs(counts) do
    if by ~= 0 then names[#names + 1] = what end
  end
  if #names <= FEW then
    for i = 1, #names do
      call('HINCRBY', COUNT, names[i], int(counts[names[i]]))
    end
    return
  end
  local before = call_many('HMGET', COUNT, names)
  for i = 1, #names do
    changed[2 * i - 1], changed[2 * i] = names[i], int((tonumber(before[i]) or 0) + counts[names[i]])
  end
  call_many('HSET', COUNT, changed)
end
local function count(what, by)
  counts[what] = (counts[what] or 0) + by
  write_later = write_counts
end

-- One entry of the log stands for one event of each of its tasks: "tid:attempt tid:attempt …". Their ids follow each other.
local function event(kind, worker, tasks, n, detail)
  if n == 0 then return end
  local s, c = take_ids(n)
  call('XADD', LOG, stream_id(s, c), 'k', kind, 'w', worker, 't', tasks, 'd', detail or '')
  ring('log')
end

-- A record: place, attempt, failures, losses, partition, owner, claimed at, process, flags, run at, ttl, unique key. Of a task that was
-- handed over and has not begun, `HANDED` stands in the place of the process. Flags are a number: 1 for one that stands still on request, 2
-- more if its attempt has chained anything, and 4 or 8 more if its worker was told to stop or to kill it.
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
local function first_record(spec, owner, claimed_at, process)
  local part, ttl, _, key = head(spec)
  return 's 1 0 0 ' .. part .. ' ' .. owner .. ' ' .. claimed_at .. ' ' .. process .. ' 0 - ' .. ttl .. ' ' .. key
end

-- What attempts have chained: under a task's id what there is of it, "calls tasks bytes told" and a line for each partition; under that and the
-- number of a call what came with it. Nothing of it is known anywhere else.
local function is_chained(f)
  return floor(tonumber(f[9]) / 2) % 2 == 1
end
local function chained_fields(tid, account)
  local all = {}
  for i = 1, tonumber(string.match(account, '^%d+')) do
    all[i] = tid .. ':' .. i
  end
  return all
end
local function unchain(tid)
  local gone = chained_fields(tid, call('HGET', CHAINED, tid) or '0')
  gone[#gone + 1] = tid
  call_many('HDEL', CHAINED, gone)
end

-- Where nothing else says so, what attempts have chained is left to another script: see `follow.lua`.
local follow = nil

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

-- Tasks that can be claimed stand in two lines, in runs: tasks of one partition whose ids follow each other, so that a batch costs no more
-- than one task. ORDER has the runs as they are to be taken, the most urgent and then the oldest first: a digit of urgency, the first id,
-- partition, how many. LINE has them by partition, "partition first-id how-many", for a worker that may take few of those in front. No other
-- task has an id within a run: whoever takes runs by their first ids takes tasks by their ids.
-- A partition begins with the digit of its priority, and what is left of it to nine is its urgency.
local function in_order(part, tid, n)
  return string.char(105 - string.byte(part)) .. tid .. ' ' .. part .. ' ' .. int(n)
end
local function in_line(part, tid, n)
  return part .. ' ' .. tid .. ' ' .. int(n)
end

local function line_up(part, tid, n)
  call('ZADD', ORDER, '0', in_order(part, tid, n))
  call('ZADD', LINE, '0', in_line(part, tid, n))
end

-- How many wait is counted by queue, under its name behind a bar.
local function queue_of(part)
  return string.match(part, '|[^|]*')
end

local function waits(part, by)
  count(queue_of(part), by)
end

-- Whether a worker may take from a partition: it serves the queue, and has what is needed. What it serves and has stands between line ends.
local function fits(part, queues, caps)
  local queue, needs = string.match(part, '^%d|([^|]*)|(.*)$')
  if not queue or not string.find(queues, '\n' .. queue .. '\n', 1, true) then return false end
  if needs == '' then return true end
  if not string.find(needs, ',', 1, true) then return string.find(caps, '\n' .. needs .. '\n', 1, true) ~= nil end
  for need in string.gmatch(needs, '[^,]+') do
    if not string.find(caps, '\n' .. need .. '\n', 1, true) then return false end
  end
  return true
end

-- An id in two limbs, which numbers hold exactly, and back.
local LIMB = 10000000
local function limbs(tid)
  return tonumber(string.sub(tid, 1, 12)), tonumber(string.sub(tid, 13))
end
local function from_limbs(high, low)
  return fmt('%d%07d', high + floor(low / LIMB), low % LIMB)
end

-- Takes one task out of the run it stands in, and leaves what is before and behind it.
local function leave_line(part, tid)
  local run = call('ZREVRANGEBYLEX', LINE, '(' .. part .. ' ' .. tid .. '!', '[' .. part .. ' ', 'LIMIT', 0, 1)[1]
  if not run then return end
  local first, n = string.match(run, ' (%d+) (%d+)$')
  local high, low = limbs(first)
  local own_high, own_low = limbs(tid)
  local before = (own_high - high) * LIMB + own_low - low
  local behind = tonumber(n) - before - 1
  if behind < 0 then return end
  call('ZREM', ORDER, in_order(part, first, n))
  call('ZREM', LINE, run)
  if before > 0 then line_up(part, first, before) end
  if behind > 0 then line_up(part, from_limbs(own_high, own_low + 1), behind) end
  waits(part, -1)
end

-- Gives a new task to a worker that has not asked for it.
local HANDED = 'h'
local function give(worker, tid, spec, process)
  call('HSET', TASK, tid, first_record(spec, worker, int(now_us), process))
  call('ZADD', OWNED, '0', worker .. ':' .. tid)
  event(SPAWNING, worker, tid .. ':1', 1)
end

-- Wakes one worker that waits for a partition. The stream is a bell: what it rings for stands in line, so that old entries may go.
local BELLS = '8'
local function wake(stream)
  call('XADD', stream, 'MAXLEN', BELLS, '*', 'm', '')
end

-- Every worker that waits looks at least this often, in microseconds, and learns then what is due before it looks again. Only what is due
-- sooner has to be told.
local LOOKS = 2100000
local function delay(tid, part, due, stream)
  call('ZADD', DELAYED, due, tid .. ' ' .. part)
  if due - now_us < LOOKS and call('ZRANGE', DELAYED, 0, 0)[1] == tid .. ' ' .. part then wake(stream) end
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

-- Enters a worker: it is a task too.
local function enlist(spec, info, pid, ttl_ms, kept_ms)
  local s, c = take_ids(1)
  local tid = digits(s, c)
  call('XADD', BORN, stream_id(s, c), 'n', '1')
  call('HSET', SPEC, tid, spec)
  call('HSET', TASK, tid, record({ 'x', 1, 0, 0, '-', tid, int(now_us), pid, 0, '-', kept_ms, '' }))
  call('HSET', WORKERS, tid, info)
  lease_out(tid, ttl_ms)
  event(RUNNING, tid, tid .. ':1', 1)
  return tid
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
  if call('SREM', OWN, owner) == 1 then
    call('HDEL', WORKERS, owner)
    call('HDEL', BEATS, owner)
    call('ZREM', LEASE, owner)
    call('HDEL', IDLE, owner)
  end
end

-- The end of every script: what was put off is written, and the answer is remembered, with the second of it.
local function answer(reply, remembered)
  if write_later then write_later() end
  for topic in pairs(bells) do
    call('PUBLISH', ARGV[1] .. topic, '')
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
