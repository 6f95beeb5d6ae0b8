-- Records that targets have started. ARGV: for each task, attempt, owner, pid. Stale attempts are
-- ignored.
write_without_memory()
local n = (#ARGV - FIRST + 1) / 4
local tids = {}
for i = 1, n do
  tids[i] = ARGV[FIRST + (i - 1) * 4]
end
local records = call_many('HMGET', RECORDS, tids)
local changed, began, order, seen, started, started_tids, entries, _ = {}, {}, {}, {}, {}, {}, {}, nil
local left, reached = counts_of('s'), counts_of('x')
for i = 1, n do
  local a = FIRST + (i - 1) * 4
  local tid = ARGV[a]
  local f = records[i] and not seen[tid] and fields(records[i])
  if f and f[1] == 's' and f[2] == ARGV[a + 1] and f[6] == ARGV[a + 2] then
    seen[tid] = true
    f[1], f[8] = 'x', ARGV[a + 3]
    if not began[f[6]] then
      began[f[6]] = {}
      order[#order + 1] = f[6]
    end
    table.insert(began[f[6]], tid .. ':' .. f[2])
    started[#started + 1] = f
    started_tids[#started] = tid
    left[f[5]], reached[f[5]] = (left[f[5]] or 0) - 1, (reached[f[5]] or 0) + 1
  end
end
for i = 1, #order do
  _, _, entries[order[i]] = event(RUNNING, order[i], began[order[i]])
end
for i = 1, #started do
  local f = started[i]
  f[13] = add_events(f[13], entries[f[6]])
  changed[2 * i - 1], changed[2 * i] = started_tids[i], record(f)
end
call_many('HSET', RECORDS, changed)
return answer({})
