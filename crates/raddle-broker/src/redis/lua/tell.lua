-- Takes control words that a worker is told, those of them that are still there. ARGV: each as it is stored, and what it adds to the flags of its task: that
-- outlives the worker.
local reply = {}
for i = FIRST, #ARGV, 2 do
  local word, flag = ARGV[i], tonumber(ARGV[i + 1])
  if call('ZREM', WORDS, word) == 1 then
    reply[#reply + 1] = word
    local tid = string.match(word, '^%d+')
    local rec = flag > 0 and call('HGET', TASK, tid)
    if rec then
      local f = fields(rec)
      f[9] = int(bit.bor(tonumber(f[9]), flag))
      call('HSET', TASK, tid, record(f))
    end
  end
end
return answer(reply)
