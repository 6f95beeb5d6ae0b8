-- Applies changes to tasks, each if its task is unchanged since it was read. ARGV: see
-- `changes.lua`. Returns for each change 'ok', or why it was not applied.
write_without_memory()
local reply = {}
for i, it in ipairs(cjson.decode(ARGV[FIRST + 2])) do
  reply[i] = find_conflict(it)
  if not reply[i] then
    apply_change(it)
    reply[i] = 'ok'
  end
end
return answer(reply)
