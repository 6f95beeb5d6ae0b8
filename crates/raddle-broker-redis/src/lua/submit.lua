-- Stores tasks. ARGV: packed tasks; then '', or 'resubmit', the resubmitted task and 'dead' if it
-- must be a dead letter, or 'ephemeral' and info and lease of the ephemeral worker that claims the
-- only task. Returns the ids, and for 'ephemeral' the worker, its task and the fencing token; false
-- if the resubmitted task is no dead letter.
local tasks, mode = cmsgpack.unpack(ARGV[FIRST]), ARGV[FIRST + 1]
local old = mode == 'resubmit' and ARGV[FIRST + 2]
if old and ARGV[FIRST + 3] == 'dead' and not call('ZSCORE', DEAD_LETTERS, old) then return answer(false) end
local tids, due_now = submit(tasks, mode == 'ephemeral' and not is_paused(tasks[1][1]))
local is_new = string.sub(tids[1], 1, 1) ~= '='
if old and is_new then mark_resubmitted(old) end
local worker, token = '', ''
if mode == 'ephemeral' and is_new then
  worker = register_ephemeral(ARGV[FIRST + 2], tonumber(ARGV[FIRST + 3]))
  if due_now then
    local s, c, entry = event(SPAWNING, worker, { due_now .. ':1' })
    call('HSET', RECORDS, due_now, (initial_record(tasks[1][2], worker, entry)))
    call('ZADD', OWNED, '0', worker .. ':' .. due_now)
    count('s', tasks[1][1], 1)
    count_outcome(tasks[1][3], 0)
    token = digits(s, c)
  end
end
return answer({ tids, worker, due_now or '', token })
