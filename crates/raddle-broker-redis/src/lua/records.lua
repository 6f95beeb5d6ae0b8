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

-- The record of a task's first claim, whose event is in this entry of the log; and the task's
-- partition and name.
local function initial_record(spec, owner, entry)
  local partition, ttl, _, name, key = head(spec)
  return 's 1 0 0 ' .. partition .. ' ' .. owner .. ' ' .. int(now_us) .. ' - 0 - ' .. ttl .. ' - ' .. entry .. ' ' .. name .. ' ' .. key, partition, name
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
