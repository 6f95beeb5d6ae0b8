-- Enters a worker. KEYS: its own stream, which is made by the caller once the id is known. ARGV: spec, info, process, lease, how long
-- its record is kept.
return answer({ enlist(ARGV[FIRST], ARGV[FIRST + 1], ARGV[FIRST + 2], tonumber(ARGV[FIRST + 3]), ARGV[FIRST + 4]) })
