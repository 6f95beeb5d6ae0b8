-- Returns the control messages for a worker and for its tasks. ARGV: the worker.
write_without_memory()
local owner = ARGV[FIRST]
if call('ZCARD', WORDS) == 0 then return answer({}) end
local held = call('ZRANGEBYLEX', OWNED, '[' .. owner .. ':', '(' .. owner .. ';')
local reply = {}
held[#held + 1] = owner .. ':' .. owner
for i = 1, #held do
  local tid = string.sub(held[i], #owner + 2)
  local words = call('ZRANGEBYLEX', WORDS, '[' .. tid .. ':', '(' .. tid .. ';')
  for j = 1, #words do
    reply[#reply + 1] = words[j]
  end
end
return answer(reply)
