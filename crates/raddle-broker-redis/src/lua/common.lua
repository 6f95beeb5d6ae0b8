-- Shared code. A script gets the paragraphs that it uses, directly or by others, and those
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

-- The functions that `answer` calls: notifications and counters are collected, and written once.
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
local function counts_of(status)
  local of = counts[status]
  if not of then
    of = {}
    counts[status] = of
  end
  return of
end

local function count(status, partition, by)
  local of = counts_of(status)
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
local function outcomes_of(name)
  local of = outcomes[name]
  if not of then
    of = {}
    outcomes[name] = of
  end
  return of
end

local function count_outcome(name, what)
  local of = outcomes_of(name)
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
