-- Deletes a portion of old stored replies, at most once a minute for all callers. ARGV: cursor.
-- Returns the next cursor.
write_without_memory()
local from, EVERY = ARGV[FIRST], 60
if from == '0' then
  if sec - tonumber(call('HGET', META, 'replies_deleted_at') or 0) < EVERY then return '0' end
  call('HSET', META, 'replies_deleted_at', time[1])
end
local found = call('HSCAN', META, from, 'COUNT', '100')
local old = {}
for i = 1, #found[2], 2 do
  -- The field of a reply ends with its retention in seconds.
  local name, kept = found[2][i], string.match(found[2][i], '^%x+:%d+:(%d+)$')
  if kept then
    local _, said_at = struct.unpack('<dd', found[2][i + 1])
    if sec - said_at > tonumber(kept) then old[#old + 1] = name end
  end
end
if #old > 0 then call_many('HDEL', META, old) end
return found[1]
