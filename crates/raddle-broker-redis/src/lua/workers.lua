-- Leases do not expire while no worker calls: no worker can renew one at a server that is down or
-- suspended, and none takes over. After a silence of this many milliseconds, every lease that had
-- not expired before is extended by the silence.
local MIN_SILENCE = 2000
local function extend_leases(silence)
  local last = tonumber(call('HGET', META, 'last_heartbeat') or now_ms)
  if now_ms - last < silence then return end
  local workers = call('ZRANGEBYSCORE', LEASES, int(last), '+inf', 'WITHSCORES')
  for i = 1, #workers, 2 do
    call('ZADD', LEASES, int(tonumber(workers[i + 1]) + now_ms - last), workers[i])
  end
  call('HSET', META, 'last_heartbeat', int(now_ms))
end

-- Whether the lease of a worker that has just called holds.
local function has_lease(worker)
  local lease = call('ZSCORE', LEASES, worker)
  if lease and tonumber(lease) < now_ms then
    extend_leases(MIN_SILENCE)
    lease = call('ZSCORE', LEASES, worker)
  end
  return lease and tonumber(lease) >= now_ms
end

local function renew_lease(worker, ttl_ms)
  call('ZADD', LEASES, int(now_ms + ttl_ms), worker)
  call('HSET', META, 'last_heartbeat', int(now_ms))
end

local function remove_worker(worker)
  call('HDEL', WORKERS, worker)
  call('HDEL', HEARTBEATS, worker)
  call('ZREM', LEASES, worker)
  call('DEL', PREFIX .. 'wake:worker:' .. worker, PREFIX .. 'worker:' .. worker)
end

-- Registers an ephemeral worker, which has no task record.
local function register_ephemeral(info, ttl_ms)
  local tid = digits(take_ids(1))
  call('HSET', WORKERS, tid, info)
  renew_lease(tid, ttl_ms)
  call('SADD', EPHEMERAL_WORKERS, tid)
  return tid
end

-- Removes an ephemeral worker. Others stay.
local function remove_ephemeral(owner)
  if call('SREM', EPHEMERAL_WORKERS, owner) == 1 then remove_worker(owner) end
end
