-- The workers whose lease has run out. ARGV: the margin.
return call('ZRANGEBYSCORE', LEASE, '-inf', '(' .. int(now_ms - tonumber(ARGV[FIRST])))
