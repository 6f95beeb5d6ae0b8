-- Returns the workers whose lease has expired. ARGV: takeover margin.
return call('ZRANGEBYSCORE', LEASES, '-inf', '(' .. int(now_ms - tonumber(ARGV[FIRST])))
