-- Enters a worker that is there for one task alone. ARGV: info and lease.
return answer(enter_own(ARGV[FIRST], tonumber(ARGV[FIRST + 1])))
