-- Gives tasks to workers: the most urgent, then the oldest, over the partitions they may take from.
-- ARGV: how many at most for each, how many partitions the caller knows of, the one task that is asked for or '', the queues that the
-- workers serve and the capabilities they have, each between line ends; the channel by which they are reached if they wait when there is nothing,
-- '-' if they can only be woken, '' if they do not wait; the last id that there was when the worker began to wait, or ''; and the workers. For
-- one task, or since an id, there is one worker alone.
-- Answers for each worker a word, the partitions that others are to be woken for, and what belongs to the word.
local each, known, only = tonumber(ARGV[FIRST]), tonumber(ARGV[FIRST + 1]), ARGV[FIRST + 2]
local queues, caps, channel, since = ARGV[FIRST + 3], ARGV[FIRST + 4], ARGV[FIRST + 5], ARGV[FIRST + 6]
-- How many overdue tasks one claim moves: the rest follows with the next.
local PROMOTED = 256
-- How many runs are looked at first, then in one go, and in all before those that the worker may take are looked for by partition.
local FRONT, PAGE, SCANNED = 16, 100, 300

-- Whose lease has run out gets nothing: its runners have given up, and others take over what it has.
local replies, owners, place = {}, {}, {}
for i = FIRST + 7, #ARGV do
  local at = i - FIRST - 6
  if has_lease(ARGV[i]) then
    owners[#owners + 1], place[#place + 1] = ARGV[i], at
  else
    replies[at] = { 'gone', {} }
  end
end
if #owners == 0 then return answer(replies) end
local max = each * #owners

if channel == '' then call('HDEL', IDLE, unpack(owners)) end

-- What was handed to the worker while it waited, and may not have reached it.
if since ~= '' then
  local owner = owners[1]
  local given = { 'given', {}, digits(slot, counter) }
  for _, held in ipairs(call('ZRANGEBYLEX', OWNED, '(' .. owner .. ':' .. since, '(' .. owner .. ';')) do
    local tid = string.sub(held, #owner + 2)
    local f = fields(call('HGET', TASK, tid))
    if f[1] == 's' and f[8] == HANDED then
      local n = #given
      given[n + 1], given[n + 2], given[n + 3] = tid, f[2], call('HGET', SPEC, tid)
    end
  end
  if #given > 3 then return answer({ given }) end
end

-- Delayed tasks whose time has come, whoever may take them.
local promoted, rings = {}, {}
local next_due = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')
if next_due[1] and tonumber(next_due[2]) <= now_us then
  local due = call('ZRANGEBYSCORE', DELAYED, '-inf', int(now_us), 'LIMIT', 0, PROMOTED)
  local tids, known_part, changed = {}, {}, {}
  for i = 1, #due do
    tids[i] = string.sub(due[i], 1, 19)
  end
  local records = call('HMGET', TASK, unpack(tids))
  for i = 1, #due do
    local f, part = fields(records[i]), string.sub(due[i], 21)
    f[1], f[10] = 'r', '-'
    changed[2 * i - 1], changed[2 * i] = tids[i], record(f)
    line_up(part, tids[i], 1)
    waits(part, 1)
    if not known_part[part] then
      known_part[part] = true
      promoted[#promoted + 1] = part
    end
  end
  call('HSET', TASK, unpack(changed))
  call('ZREM', DELAYED, unpack(due))
  count('d', -#due)
  next_due = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')
end

-- What is taken: the ids, and the runs that they are from.
local tids, from_order, from_line, last, more = {}, {}, {}, {}, ''
local remainder = nil
-- Takes as many of a run as there is room for.
local function take(part, first, n)
  local k, at, taken = #from_order + 1, #tids, math.min(n, max - #tids)
  from_order[k], from_line[k] = in_order(part, first, n), in_line(part, first, n)
  last[part] = from_line[k]
  tids[at + 1] = first
  if n > 1 then
    local high, low = limbs(first)
    for i = 1, taken - 1 do
      tids[at + 1 + i] = from_limbs(high, low + i)
    end
    if taken < n then
      remainder = { part = part, tid = from_limbs(high, low + taken), n = n - taken }
      more = '1'
    end
  end
  waits(part, -taken)
end

-- Takes by partition: a heap of those that the worker may take from, by what comes next in each.
local function take_by_part()
  local heap, parts = {}, {}
  local function fetch(source)
    local list = call('ZRANGEBYLEX', LINE, source.from, '(' .. source.part .. '!', 'LIMIT', 0, source.chunk)
    source.list, source.next, source.full = list, 1, #list == source.chunk
    if #list > 0 then source.from = '(' .. list[#list] end
  end
  local function look_ahead(source)
    if source.next > #source.list and source.full then
      source.chunk = source.chunk * 2
      fetch(source)
    end
    local run = source.list[source.next]
    if run then source.first, source.n = string.match(run, ' (%d+) (%d+)$') end
    source.front = run and source.urgency .. source.first
    return source.front
  end
  local function sift(i)
    while true do
      local least, left = i, 2 * i
      if left <= #heap and heap[left].front < heap[least].front then least = left end
      if left + 1 <= #heap and heap[left + 1].front < heap[least].front then least = left + 1 end
      if least == i then return end
      heap[i], heap[least] = heap[least], heap[i]
      i = least
    end
  end
  for _, part in ipairs(call('SMEMBERS', PARTS)) do
    if fits(part, queues, caps) then parts[#parts + 1] = part end
  end
  local chunk = floor((max - #tids) / math.max(#parts, 1)) + 2
  for _, part in ipairs(parts) do
    local from = last[part] and '(' .. last[part] or '[' .. part .. ' '
    local source = { part = part, from = from, urgency = 9 - string.sub(part, 1, 1), chunk = chunk }
    fetch(source)
    if look_ahead(source) then heap[#heap + 1] = source end
  end
  for i = floor(#heap / 2), 1, -1 do
    sift(i)
  end
  while #tids < max and heap[1] do
    local top = heap[1]
    take(top.part, top.first, tonumber(top.n))
    top.next = top.next + 1
    if not look_ahead(top) then
      heap[1] = heap[#heap]
      heap[#heap] = nil
    end
    sift(1)
  end
  if heap[1] then more = '1' end
end

-- Takes those in front. Mostly the worker may take all of them.
local function take_in_order()
  local from, fit = 0, {}
  while from < SCANNED do
    local size = from > 0 and PAGE or math.min(max + 1, FRONT)
    local page = call('ZRANGE', ORDER, from, from + size - 1)
    for i = 1, #page do
      local first, part, n = string.match(page[i], '^%d(%d+) (%S+) (%d+)$')
      if fit[part] == nil then fit[part] = fits(part, queues, caps) end
      if fit[part] then
        if #tids >= max then
          more = '1'
          return
        end
        take(part, first, tonumber(n))
      end
    end
    if #page < size then return end
    from = from + size
  end
  take_by_part()
end

if only == '' then
  take_in_order()
else
  -- Only the caller's own look said that it is there: the record has the last word.
  local spec, rec = call('HGET', SPEC, only), call('HGET', TASK, only)
  if max > 0 and spec and call('HEXISTS', DONE, only) == 0 and (not rec or fields(rec)[1] == 'r') then
    tids[1] = only
  end
end
-- Before any of them leaves its line: one that cannot be read must not take the others with it.
local specs, records = call_many('HMGET', SPEC, tids), call_many('HMGET', TASK, tids)
for i = 1, #tids do
  records[i] = records[i] and fields(records[i])
end
if only == '' then
  call_many('ZREM', ORDER, from_order)
  call_many('ZREM', LINE, from_line)
  if remainder then line_up(remainder.part, remainder.tid, remainder.n) end
elseif #tids > 0 then
  leave_line(head(specs[1]), only)
end

-- Others are told of what became ready and is still there.
for _, part in ipairs(promoted) do
  if call('ZLEXCOUNT', LINE, '[' .. part .. ' ', '(' .. part .. '!') > 0 then rings[#rings + 1] = part end
end
-- Whoever is at work does not look again in time for what is due soon: another has to know of it.
if #tids > 0 and next_due[1] and tonumber(next_due[2]) - now_us < LOOKS then rings[#rings + 1] = string.sub(next_due[1], 21) end

-- What a worker is told for whom nothing is left, and when it is to look again without being woken.
local function nothing(owner, wakes)
  if only == '' and call('SCARD', PARTS) ~= known then return { 'parts', wakes } end
  if channel ~= '' then
    local waiting = channel .. ' ' .. queues .. ' ' .. caps
    if call('HGET', IDLE, owner) ~= waiting then call('HSET', IDLE, owner, waiting) end
  end
  return { 'none', wakes, next_due[2] and int(math.max(0, tonumber(next_due[2]) - now_us)) or '', digits(slot, counter) }
end

local claimed_at, changed, owned, busy, kept = int(now_us), {}, {}, {}, {}
local from, k = 0, 0
for w = 1, #owners do
  local owner, told, n = owners[w], {}, 0
  -- One of them wakes others for all.
  local wakes = w == 1 and rings or {}
  local reply, again
  if from < #tids then
    -- Specs are not remembered with the answer: they are where they are, and many.
    reply, again = { 'ok', wakes, more }, { 'again', wakes, more }
    busy[#busy + 1] = owner
  else
    reply = nothing(owner, wakes)
    again = reply
  end
  for i = from + 1, math.min(from + each, #tids) do
    local tid, spec, f = tids[i], specs[i], records[i]
    if spec then
      local attempt, now_is = '1', nil
      if f then
        attempt = int(tonumber(f[2]) + 1)
        f[1], f[2], f[6], f[7], f[8], f[9], f[10] = 's', attempt, owner, claimed_at, '-', 0, '-'
        now_is = record(f)
      else
        now_is = first_record(spec, owner, claimed_at, '-')
      end
      n, k = n + 1, k + 1
      changed[2 * k - 1], changed[2 * k] = tid, now_is
      owned[2 * k - 1], owned[2 * k] = '0', owner .. ':' .. tid
      told[n] = tid .. ':' .. attempt
      reply[3 * n + 1], reply[3 * n + 2], reply[3 * n + 3] = tid, attempt, spec
      again[2 * n + 2], again[2 * n + 3] = tid, attempt
    end
  end
  from = from + each
  event(SPAWNING, owner, table.concat(told, ' '), n)
  replies[place[w]], kept[place[w]] = reply, again
end
if channel ~= '' and #busy > 0 then call('HDEL', IDLE, unpack(busy)) end
call_many('HSET', TASK, changed)
call_many('ZADD', OWNED, owned)
for i = 1, #replies do
  kept[i] = kept[i] or replies[i]
end
return answer(replies, kept)
