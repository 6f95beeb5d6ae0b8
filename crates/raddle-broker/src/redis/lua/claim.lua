-- Gives tasks to a worker: the most urgent, then the oldest, over the partitions it may take from.
-- KEYS: stream, returned, delayed of each partition, the most urgent first. ARGV: owner, how many at most, how many partitions the
-- caller knows of, the one task that is asked for or '' and its id in the stream, and the names of the partitions in the order of the keys.
local owner, max, known = ARGV[FIRST], tonumber(ARGV[FIRST + 1]), tonumber(ARGV[FIRST + 2])
local only, only_id = ARGV[FIRST + 3], ARGV[FIRST + 4]
local N = FIRST + 4
local nparts = #ARGV - N
-- How many overdue tasks one claim moves of each partition: the rest follows with the next.
local PROMOTED = 256

-- Whose lease has run out gets nothing: its runners have given up, and others take over what it has.
local lease = call('ZSCORE', LEASE, owner)
if not lease or tonumber(lease) < now_ms then
  return answer({ 'gone' })
end
if only == '' and call('SCARD', PARTS) ~= known then
  return answer({ 'parts' })
end

local index = {}
for p = 1, nparts do
  index[ARGV[N + p]] = p
end
local function stream_of(p) return KEYS[FIXED + p * 3 - 2] end
local function returned_of(p) return KEYS[FIXED + p * 3 - 1] end
local function delayed_of(p) return KEYS[FIXED + p * 3] end
local function rank(tid) return string.sub(tid, 1, 15) end

-- Delayed tasks whose time has come.
local overdue = call('ZRANGEBYSCORE', DUE, '-inf', int(now_us))
for i = 1, #overdue do
  local part = overdue[i]
  local p = index[part]
  if p then
    local tids = call('ZRANGEBYSCORE', delayed_of(p), '-inf', int(now_us), 'LIMIT', 0, PROMOTED)
    if #tids > 0 then
      local records = call('HMGET', TASK, unpack(tids))
      local changed, back = {}, {}
      for j = 1, #tids do
        local f = fields(records[j])
        f[1], f[10] = 'r', '-'
        changed[#changed + 1] = tids[j]
        changed[#changed + 1] = record(f)
        back[#back + 1] = rank(tids[j])
        back[#back + 1] = tids[j]
      end
      call('HSET', TASK, unpack(changed))
      call('ZADD', returned_of(p), unpack(back))
      call('ZREM', delayed_of(p), unpack(tids))
      call('HINCRBY', READY, part, #tids)
      count('d', -#tids)
      count('back:' .. part, #tids)
    end
    fix_due(part, delayed_of(p))
  end
end

local chosen, markers = {}, {}
-- How many tasks of each partition came back: mostly none, which saves a look.
local came_back = {}

-- The first `k` tasks of a partition: those that came back stand beside the stream, and keep their place by id.
local function first_of(p, k)
  local found, cursor = {}, '-'
  repeat
    local asked = k - #found
    local entries = call('XRANGE', stream_of(p), cursor, '+', 'COUNT', asked)
    for i = 1, #entries do
      local id, pair = entries[i][1], entries[i][2]
      if pair[1] == 't' then
        found[#found + 1] = { pair[2], id, p }
      else
        markers[p] = markers[p] or {}
        markers[p][#markers[p] + 1] = id
      end
      cursor = '(' .. id
    end
  until #entries < asked or #found >= k
  if came_back[p] > 0 then
    local back = call('ZRANGE', returned_of(p), 0, k - 1)
    for i = 1, #back do
      found[#found + 1] = { back[i], false, p }
    end
    table.sort(found, function(a, b) return a[1] < b[1] end)
    for i = #found, k + 1, -1 do
      found[i] = nil
    end
  end
  return found
end

-- The first tasks of several partitions of one priority: a heap of their fronts.
local function merge(group, need)
  local sources, heap = {}, {}
  local function less(a, b) return heap[a].front < heap[b].front end
  local function sift(i)
    while true do
      local least, left = i, 2 * i
      if left <= #heap and less(left, least) then least = left end
      if left + 1 <= #heap and less(left + 1, least) then least = left + 1 end
      if least == i then return end
      heap[i], heap[least] = heap[least], heap[i]
      i = least
    end
  end
  local chunk = math.min(need, floor(need / #group) + 2)
  for g = 1, #group do
    local list = first_of(group[g], chunk)
    if #list > 0 then
      heap[#heap + 1] = { list = list, next = 1, chunk = chunk, p = group[g], front = list[1][1] }
    end
  end
  for i = floor(#heap / 2), 1, -1 do
    sift(i)
  end
  while need > 0 and #heap > 0 do
    local top = heap[1]
    chosen[#chosen + 1] = top.list[top.next]
    need, top.next = need - 1, top.next + 1
    if top.next > #top.list and #top.list == top.chunk then
      top.chunk = top.chunk * 2
      top.list = first_of(top.p, top.chunk)
    end
    if top.next > #top.list then
      heap[1] = heap[#heap]
      heap[#heap] = nil
    else
      top.front = top.list[top.next][1]
    end
    if #heap > 1 then sift(1) end
  end
end

local waiting = nil
if only ~= '' then
  -- Only the caller's own look said that it is there: the record has the last word, below.
  if nparts == 1 and max > 0 then
    local spec, rec = call('HGET', SPEC, only), call('HGET', TASK, only)
    local waits = spec and call('HEXISTS', DONE, only) == 0 and (not rec or fields(rec)[1] == 'r')
    if waits then chosen[1] = { only, only_id, 1 } end
  end
elseif nparts > 0 then
  local names = {}
  for p = 1, nparts do
    names[p] = ARGV[N + p]
  end
  waiting = call_many('HMGET', READY, names)
  local fields_back = {}
  for p = 1, nparts do
    fields_back[p] = 'back:' .. names[p]
  end
  local back = call_many('HMGET', COUNT, fields_back)
  for p = 1, nparts do
    came_back[p] = tonumber(back[p] or 0) + (counts[fields_back[p]] or 0)
  end
  local p = 1
  while p <= nparts and #chosen < max do
    local urgency, group = string.sub(names[p], 1, 1), {}
    while p <= nparts and string.sub(names[p], 1, 1) == urgency do
      if tonumber(waiting[p] or 0) > 0 then group[#group + 1] = p end
      p = p + 1
    end
    if #group == 1 then
      local list = first_of(group[1], max - #chosen)
      for i = 1, #list do
        chosen[#chosen + 1] = list[i]
      end
    elseif #group > 1 then
      merge(group, max - #chosen)
    end
  end
end

for p, ids in pairs(markers) do
  call_many('XDEL', stream_of(p), ids)
end
if #chosen == 0 then
  -- When to look again without being woken.
  local next_due = ''
  local dues = call('ZRANGE', DUE, 0, -1, 'WITHSCORES')
  for i = 1, #dues, 2 do
    if index[dues[i]] then
      next_due = int(math.max(0, tonumber(dues[i + 1]) - now_us))
      break
    end
  end
  return answer({ 'none', next_due })
end

local tids = {}
for i = 1, #chosen do
  tids[i] = chosen[i][1]
end
local specs, records = call_many('HMGET', SPEC, tids), call_many('HMGET', TASK, tids)
local reply, kept, changed, owned, told = { 'ok' }, { 'again' }, {}, {}, {}
local from_stream, from_back, taken = {}, {}, {}
for i = 1, #chosen do
  local tid, id, p = chosen[i][1], chosen[i][2], chosen[i][3]
  local spec, rec = specs[i], records[i]
  from_stream[p], from_back[p] = from_stream[p] or {}, from_back[p] or {}
  if id then table.insert(from_stream[p], id) end
  if not id or only ~= '' then table.insert(from_back[p], tid) end
  taken[p] = (taken[p] or 0) + 1
  if spec then
    local f
    if rec then
      f = fields(rec)
    else
      local part, ttl, _, key = head(spec)
      f = { 'r', 0, 0, 0, part, '-', '-', '-', 0, '-', ttl, key }
    end
    f[1], f[2], f[6], f[7], f[8], f[9], f[10] = 's', int(tonumber(f[2]) + 1), owner, int(now_us), '-', 0, '-'
    changed[#changed + 1] = tid
    changed[#changed + 1] = record(f)
    owned[#owned + 1] = 0
    owned[#owned + 1] = owner .. ':' .. tid
    told[#told + 1] = tid .. ':' .. f[2]
    reply[#reply + 1] = tid
    reply[#reply + 1] = f[2]
    reply[#reply + 1] = spec
    kept[#kept + 1] = tid
    kept[#kept + 1] = f[2]
  end
end
for p, ids in pairs(from_stream) do
  call_many('XDEL', stream_of(p), ids)
end
for p, back in pairs(from_back) do
  local _, removed = call_many('ZREM', returned_of(p), back)
  count('back:' .. ARGV[N + p], -removed)
end
local sums = {}
for p, by in pairs(taken) do
  local before = waiting and waiting[p] or call('HGET', READY, ARGV[N + p]) or 0
  sums[#sums + 1] = ARGV[N + p]
  sums[#sums + 1] = int(tonumber(before) - by)
end
call_many('HSET', READY, sums)
call_many('HSET', TASK, changed)
call_many('ZADD', OWNED, owned)
count('1', #told)
event(SPAWNING, owner, table.concat(told, ' '), #told)
-- Specs are not remembered with the answer: they are where they are, and many.
return answer(reply, kept)
