-- What every script begins with. All keys are declared: the first ones are always the same, those of partitions, output and the like
-- follow. ARGV[1] is the prefix of channels, ARGV[2] the number of the call, ARGV[3] how long its answer is remembered, in milliseconds.
local call, fmt, floor = redis.call, string.format, math.floor
local ONCE, META, SPEC, TASK, DONE, BORN, LOG = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local COUNT, IDLE, ORDER, LINE, DELAYED, OWNED, LEASE, WORDS = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local PORTS, EXPIRY, DEAD, UNIQUES, PARTS, QUEUES, WORKERS, BEATS, OUT, OWN =
  KEYS[16], KEYS[17], KEYS[18], KEYS[19], KEYS[20], KEYS[21], KEYS[22], KEYS[23], KEYS[24], KEYS[25]
local FIXED, FIRST = 25, 4

-- Kinds of events, as `EventKind` numbers them.
local SPAWNING, RUNNING, COMPLETED, STALE = 1, 2, 3, 13

-- A call whose answer was lost is sent again under the same number, and gets the answer of the first time.
if ARGV[2] ~= '' then
  local seen = call('GET', ONCE)
  if seen then
    local number, answer = string.match(seen, '^(%d+) (.*)$')
    if number == ARGV[2] then
      return cmsgpack.unpack(answer)
    end
  end
end

-- The clock. Numbers are doubles here, exact up to 2^53: an id is kept as its slot of 4096 ns and a counter.
local time = call('TIME')
local sec, usec = tonumber(time[1]), tonumber(time[2])
local now_us = sec * 1000000 + usec
local now_ms = floor(now_us / 1000)
local last = call('HMGET', META, 'slot', 'counter')
local slot, counter = tonumber(last[1] or 0), tonumber(last[2] or 0)
local ids_taken = false

local function int(number)
  return fmt('%.0f', number)
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
  return fmt('%.0f-%d', s, c)
end

-- An id as people see it: its 19 digits, in two limbs.
local function digits(s, c)
  local high, low = floor(s / 10000000), s % 10000000 * 4096 + c
  return fmt('%.0f%07.0f', high * 4096 + floor(low / 10000000), low % 10000000)
end

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

-- Counters and bells are brought together, and written once at the end.
local counts, bells = {}, {}
local function count(what, by)
  counts[what] = (counts[what] or 0) + by
end
local function ring(topic)
  bells[topic] = true
end

-- One entry of the log stands for one event of each of its tasks: "tid:attempt tid:attempt …". Their ids follow each other.
local function event(kind, worker, tasks, n, detail)
  if n == 0 then return end
  local s, c = take_ids(n)
  call('XADD', LOG, stream_id(s, c), 'k', kind, 'w', worker, 't', tasks, 'd', detail or '')
  ring('log')
end

-- A record: place, attempt, failures, losses, partition, owner, claimed at, process, paused, run at, ttl, unique key.
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

-- Tasks that can be claimed stand in two lines. ORDER has them as they are to be taken, the most urgent and then the oldest first: a digit of
-- urgency, tid, partition. LINE has them by partition, "partition tid", for a worker that may take few of those in front.
local function in_order(part, tid)
  return 9 - string.sub(part, 1, 1) .. tid .. ' ' .. part
end
local function in_line(part, tid)
  return part .. ' ' .. tid
end
local function line_up(part, tid)
  call('ZADD', ORDER, 0, in_order(part, tid))
  call('ZADD', LINE, 0, in_line(part, tid))
end
local function leave_line(part, tid)
  call('ZREM', ORDER, in_order(part, tid))
  call('ZREM', LINE, in_line(part, tid))
end

-- Wakes one worker that waits for a partition. The stream is a bell: what it rings for stands in line, so that old entries may go.
local BELLS = 8
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

-- Enters a worker: it is a task too.
local function enlist(spec, info, pid, ttl_ms, kept_ms)
  local s, c = take_ids(1)
  local tid = digits(s, c)
  call('XADD', BORN, stream_id(s, c), 'n', 1)
  call('HSET', SPEC, tid, spec)
  call('HSET', TASK, tid, record({ 'x', 1, 0, 0, '-', tid, int(now_us), pid, 0, '-', kept_ms, '' }))
  call('HSET', WORKERS, tid, info)
  call('ZADD', LEASE, int(now_ms + ttl_ms), tid)
  event(RUNNING, tid, tid .. ':1', 1)
  return tid
end

-- Enters a worker that is there for one task alone. It is no task itself.
local function enter_own(info, ttl_ms)
  local tid = digits(take_ids(1))
  call('HSET', WORKERS, tid, info)
  call('ZADD', LEASE, int(now_ms + ttl_ms), tid)
  call('SADD', OWN, tid)
  return tid
end

-- Lets such a worker leave. One of another kind stays.
local function dismiss(owner)
  if call('SREM', OWN, owner) == 1 then
    call('HDEL', WORKERS, owner)
    call('HDEL', BEATS, owner)
    call('ZREM', LEASE, owner)
    call('SREM', IDLE, owner)
  end
end

-- The end of every script: what was put off is written, and the answer is remembered.
local function answer(reply, remembered)
  if ids_taken then
    call('HSET', META, 'slot', int(slot), 'counter', counter)
  end
  for what, by in pairs(counts) do
    if by ~= 0 then call('HINCRBY', COUNT, what, by) end
  end
  for topic in pairs(bells) do
    call('PUBLISH', ARGV[1] .. topic, '')
  end
  if ARGV[2] ~= '' then
    call('SET', ONCE, ARGV[2] .. ' ' .. cmsgpack.pack(remembered or reply), 'PX', ARGV[3])
  end
  return reply
end
