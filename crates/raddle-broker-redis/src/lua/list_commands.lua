-- Returns the control messages for a worker and for its tasks. ARGV: the worker.
write_without_memory()
local owner = ARGV[FIRST]
if call('ZCARD', COMMANDS) == 0 then return answer({}) end
local owned = call('ZRANGEBYLEX', OWNED, '[' .. owner .. ':', '(' .. owner .. ';')
local reply = {}
owned[#owned + 1] = owner .. ':' .. owner
for i = 1, #owned do
  local tid = string.sub(owned[i], #owner + 2)
  local commands = call('ZRANGEBYLEX', COMMANDS, '[' .. tid .. ':', '(' .. tid .. ';')
  for j = 1, #commands do
    reply[#reply + 1] = commands[j]
  end
end
return answer(reply)
