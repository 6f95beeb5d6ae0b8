-- Registers an ephemeral worker. ARGV: info, lease.
return answer(register_ephemeral(ARGV[FIRST], tonumber(ARGV[FIRST + 1])))
