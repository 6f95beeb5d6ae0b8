-- Stores an operation and returns its id. ARGV: the request.
local id = digits(take_ids(1))
call('HSET', OPERATIONS, id, 'new\n' .. ARGV[FIRST])
return answer(id)
