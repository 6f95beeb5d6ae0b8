-- Gives tasks to workers: the most urgent, then the oldest, over the partitions that they serve.
-- ARGV: how many at most for each, how many partitions the caller knows of, the one task that is asked for or '', the number of partitions that
-- the workers serve, these, and the workers. For one task there is one worker alone.
-- Answers for each worker a word, the partitions that others are to be woken for, and what belongs to the word.
local each, known, only, served = tonumber(ARGV[FIRST]), tonumber(ARGV[FIRST + 1]), ARGV[FIRST + 2], tonumber(ARGV[FIRST + 3])
-- How many overdue tasks one claim moves: the rest follows with the next.
local PROMOTED = 256
-- Whose lease has run out gets nothing: its runners have given up, and others take over what it has.
local replies, owners, place = {}, {}, {}
local is_outdated = only == '' and call('SCARD', PARTS) ~= known
for i = FIRST + 4 + served, #ARGV do
  local at = #replies + 1
  if not has_lease(ARGV[i]) then
    replies[at] = { 'gone', {} }
  elseif is_outdated then
    replies[at] = { 'parts', {} }
  else
    replies[at] = {}
    owners[#owners + 1], place[#place + 1] = ARGV[i], at
  end
end
if #owners == 0 then return answer(replies) end
local max = each * #owners

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
    line_up(part, tids[i])
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

-- What is taken: the ids, and their members of LINE.
local tids, from_line, more = {}, {}, ''
-- Reads some of each partition, merges them, and takes them up to where the rest of a partition may come in between; then on from there.
local function take_in_order()
  local chunk, from = floor(max / math.max(served, 1)) + 2, {}
  repeat
    local found, horizon = {}, nil
    for i = FIRST + 4, FIRST + 3 + served do
      local part = ARGV[i]
      local page = call('ZRANGEBYLEX', LINE, from[part] or '[' .. part .. ' ', '(' .. part .. '!', 'LIMIT', 0, chunk)
      -- A partition begins with the digit of its priority.
      local urgency = 9 - string.sub(part, 1, 1)
      for j = 1, #page do
        found[#found + 1] = urgency .. string.sub(page[j], -19) .. part
      end
      if #page == chunk and not (horizon and horizon < found[#found]) then horizon = found[#found] end
    end
    table.sort(found)
    for i = 1, #found do
      if horizon and found[i] > horizon then break end
      if #tids == max then
        more = '1'
        return
      end
      local tid, part = string.sub(found[i], 2, 20), string.sub(found[i], 21)
      local k = #tids + 1
      tids[k], from_line[k] = tid, part .. ' ' .. tid
      from[part] = '(' .. from_line[k]
      waits(part, -1)
    end
    chunk = chunk * 2
  until not horizon
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
  call_many('ZREM', LINE, from_line)
elseif #tids > 0 then
  leave_line(head(specs[1]), only)
end

-- Others are told of what became ready and is still there.
for _, part in ipairs(promoted) do
  if call('ZLEXCOUNT', LINE, '[' .. part .. ' ', '(' .. part .. '!') > 0 then rings[#rings + 1] = part end
end
-- Whoever is at work does not look again in time for what is due soon: another has to know of it.
if #tids > 0 and next_due[1] and tonumber(next_due[2]) - now_us < LOOKS then rings[#rings + 1] = string.sub(next_due[1], 21) end

local claimed_at, changed, owned, kept = int(now_us), {}, {}, {}
local from, k = 0, 0
for w = 1, #owners do
  local owner, told, n = owners[w], {}, 0
  -- One of them wakes others for all.
  local wakes = w == 1 and rings or {}
  local reply, again
  if from < #tids then
    -- Specs are not remembered with the answer: they are where they are, and many.
    reply, again = { 'ok', wakes, more }, { 'again', wakes, more }
  else
    -- When it is to look again without being woken.
    reply = { 'none', wakes, next_due[2] and int(math.max(0, tonumber(next_due[2]) - now_us)) or '' }
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
        now_is = first_record(spec, owner)
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
call_many('HSET', TASK, changed)
call_many('ZADD', OWNED, owned)
for i = 1, #replies do
  kept[i] = kept[i] or replies[i]
end
return answer(replies, kept)
