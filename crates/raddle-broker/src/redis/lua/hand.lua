-- Stores a task that comes alone and gives it to a worker that waits: the task has no need to stand in line, nor the worker to ask for it.
-- ARGV: the partition, and the spec as it is stored. Answers the task's id, or '' if it was not stored: when others stand in line, none is
-- found that waits for it, or the partition is not there yet, which `submit.lua` makes.
local part, spec = ARGV[FIRST], ARGV[FIRST + 1]
-- How many of those that wait are looked at.
local ASKED = '3'
local idle = call('HRANDFIELD', IDLE, ASKED, 'WITHVALUES')
if #idle == 0 or call('SISMEMBER', PARTS, part) == 0 then return '' end
if tonumber(call('HGET', COUNT, queue_of(part)) or 0) > 0 then return '' end
for i = 1, #idle, 2 do
  local worker = idle[i]
  -- "channel queues capabilities"; the channel of one that can only be woken is a dash.
  local channel, queues, caps = string.match(idle[i + 1], '^(%S+) ([^ ]*) (.*)$')
  -- Whose channel nobody listens to at this server is gone, cut off, or at another node. Nothing is sent then, because nodes and replicas
  -- pass messages on.
  if
    channel ~= '-' and fits(part, queues, caps)
    and tonumber(call('ZSCORE', LEASE, worker) or 0) >= now_ms
    and call('PUBSUB', 'NUMSUB', channel)[2] > 0
  then
    local s, c = take_ids(1)
    local tid = digits(s, c)
    call('XADD', BORN, stream_id(s, c), 'n', '1')
    call('HSET', SPEC, tid, spec)
    call('HDEL', IDLE, worker)
    give(worker, tid, spec, HANDED)
    local reply = answer(tid)
    -- Last of all: whom a server has something for last, it writes to first.
    call('PUBLISH', channel, worker .. ' ' .. tid .. ' 1 ' .. spec)
    return reply
  end
end
return ''
