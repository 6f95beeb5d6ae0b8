-- Enters a worker that is there for one task alone, whichever it claims. ARGV: info, lease.
return answer({ enter_own(ARGV[FIRST], tonumber(ARGV[FIRST + 1])) })
