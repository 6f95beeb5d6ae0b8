-- How many tasks of a partition stand before one of them. KEYS: stream and returned. ARGV: its id in the stream, the task.
local cursor, ahead, page = '-', 0, 1000
repeat
  local entries = call('XRANGE', KEYS[FIXED + 1], cursor, '(' .. ARGV[FIRST], 'COUNT', page)
  for i = 1, #entries do
    if entries[i][2][1] == 't' then ahead = ahead + 1 end
    cursor = '(' .. entries[i][1]
  end
until #entries < page
local rank = string.sub(ARGV[FIRST + 1], 1, 15)
ahead = ahead + call('ZCOUNT', KEYS[FIXED + 2], '-inf', '(' .. rank)
local equals = call('ZRANGEBYSCORE', KEYS[FIXED + 2], rank, rank)
for i = 1, #equals do
  if equals[i] < ARGV[FIRST + 1] then ahead = ahead + 1 end
end
return { int(ahead) }
