-- Applies changes to tasks, each if its task is unchanged since it was read. ARGV: maximum output
-- size, takeover margin, the changes as JSON, then output bytes that they refer to by index.
write_without_memory()
local cap, margin = ARGV[FIRST], tonumber(ARGV[FIRST + 1])
local changes = cjson.decode(ARGV[FIRST + 2])
local BYTES = FIRST + 2
local reply = {}
-- The most chained tasks submitted by one script, unless a single attempt has chained more.
local MAX_SUBMITTED = 2000
local submitted = 0

local function is_gone(owner)
  local lease = call('ZSCORE', LEASE, owner)
  return lease and tonumber(lease) < now_ms - margin
end

-- Why a change cannot be applied, or nil.
local function find_conflict(it)
  if call('HEXISTS', SPEC, it.tid) == 0 then return 'missing' end
  if (call('HGET', TASK, it.tid) or '') ~= it.from then return 'changed' end
  if it.from == '' and call('HEXISTS', DONE, it.tid) == 1 then return 'changed' end
  if it.words and count_commands(it.tid) ~= it.words then return 'changed' end
  if it.gone and not is_gone(it.gone) then return 'alive' end
  if submitted >= MAX_SUBMITTED and it.follows then return 'changed' end
  if it.leaves and call('ZLEXCOUNT', OWNED, '[' .. it.tid .. ':', '(' .. it.tid .. ';') > 0 then return 'changed' end
end

-- Takes and returns what an attempt has chained.
local function take_chained(tid)
  local account, fields = call('HGET', CHAINED, tid) or '0', {}
  for i = 1, tonumber(string.match(account, '^%d+')) do
    fields[i] = tid .. ':' .. i
  end
  local chained = call_many('HMGET', CHAINED, fields)
  fields[#fields + 1] = tid
  call_many('HDEL', CHAINED, fields)
  return chained
end

local function leave_status(it, f)
  local place = f and f[1] or 'r'
  if place == 'r' then
    remove_ready(it.part, it.tid)
  elseif place == 'd' then
    call('ZREM', DELAYED, it.tid .. ' ' .. it.part)
    count('d', -1)
  elseif place == 'h' then
    count('h', -1)
  elseif not is_service(f) then
    call('ZREM', OWNED, f[6] .. ':' .. it.tid)
    if place == 'x' then count('2', -1) end
  end
end

local function enter_status(it)
  local f = fields(it.to)
  local place = f[1]
  if place == 'r' then
    enqueue_ready(it.part, it.tid)
    wake('ready:' .. it.part)
  elseif place == 'd' then
    delay(it.tid, it.part, it.due)
    count('d', 1)
  elseif place == 'h' then
    count('h', 1)
  elseif not is_service(f) then
    call('ZADD', OWNED, '0', f[6] .. ':' .. it.tid)
    if place == 'x' then count('2', 1) end
  end
  call('HSET', TASK, it.tid, it.to)
end

local function finish(it, f)
  call('HDEL', TASK, it.tid)
  call('HSET', DONE, it.tid, it.done)
  call('ZADD', EXPIRY, it.expires, it.tid)
  if not (f and is_service(f)) then count(tostring(it.state), 1) end
  if it.dead then call('SADD', DEAD, it.tid) end
  if f and is_active(f) then remove_ephemeral(f[6]) end
  if it.key and call('HGET', UNIQUES, it.key) == it.tid then call('HDEL', UNIQUES, it.key) end
  if it.leaves then remove_worker(it.tid) end
end

for i = 1, #changes do
  local it = changes[i]
  local why = find_conflict(it)
  if why then
    reply[i] = why
  else
    local f = it.from ~= '' and fields(it.from)
    for j = 1, #it.output do
      local out = it.output[j]
      if out.whole then
        call('HSET', OUTPUT, out.field, ARGV[BYTES + out.bytes])
      else
        append_output(out.field, ARGV[BYTES + out.bytes], cap)
      end
    end
    local chained = it.moves and f and is_active(f) and has_flag(f[9], CHAINS) and take_chained(it.tid) or {}
    if it.moves then
      leave_status(it, f)
      if it.done then finish(it, f) else enter_status(it) end
    else
      call('HSET', TASK, it.tid, it.to)
    end
    if it.gone and not is_service(f) then call('HINCRBY', META, 'reclaims', 1) end
    if it.clears or it.done then
      call('ZREMRANGEBYLEX', WORDS, '[' .. it.tid .. ':', '(' .. it.tid .. ';')
    end
    for j = 1, #it.events do
      local e = it.events[j]
      event(e.kind, e.worker, it.tid .. ':' .. e.attempt, 1, e.detail)
    end
    for j = 1, #it.replies do
      call('ZADD', PORTS, '0', it.tid .. '.ctrl_out:' .. digits(take_ids(1)) .. ':' .. it.replies[j])
      notify('queue')
    end
    -- What attempts have chained is submitted with their end, in order.
    for _, packed in ipairs(it.follows and chained or {}) do
      local tids = submit(cmsgpack.unpack(packed))
      submitted = submitted + #tids
    end
    reply[i] = 'ok'
  end
end
return answer(reply)
