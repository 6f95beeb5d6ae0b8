-- Returns the control messages for a worker and for its tasks, but for those that are registered as
-- workers: they receive their own. ARGV: the worker.
write_without_memory()
local owner = ARGV[FIRST]
if call('ZCARD', COMMANDS) == 0 then return answer({}) end
local owned = call('ZRANGEBYLEX', OWNED, '[' .. owner .. ':', '(' .. owner .. ';')
local reply = {}
owned[#owned + 1] = owner .. ':' .. owner
for i = 1, #owned do
  local tid = string.sub(owned[i], #owner + 2)
  local commands = call('ZRANGEBYLEX', COMMANDS, '[' .. tid .. ':', '(' .. tid .. ';')
  if #commands > 0 and (tid == owner) == (call('HEXISTS', WORKERS, tid) == 1) then
    for j = 1, #commands do
      reply[#reply + 1] = commands[j]
    end
  end
end
return answer(reply)
