-- In front of `submit.lua`: notes when tasks expire. The last argument has a word for each: '-' if it does not, microseconds from now, or '@' and
-- the microsecond.
local lifetimes, stored = ARGV[#ARGV], answer
answer = function(reply, remembered)
  local s, c = string.match(reply[1], '^(%d+)-(%d+)$')
  if s then
    local known, i, place, members = {}, 0, 0, {}
    for k = 1, #reply[2], 2 do
      known[reply[2][k]] = true
    end
    for word in string.gmatch(lifetimes, '%S+') do
      i = i + 1
      if not known[i] then
        if word ~= '-' then
          local at = string.match(word, '^@(.*)$')
          at = at and tonumber(at) or now_us + tonumber(word)
          members[#members + 1] = int(at)
          members[#members + 1] = digits(id_after(tonumber(s), tonumber(c), place))
        end
        place = place + 1
      end
    end
    local first = call('ZRANGE', EXPIRING, 0, 0)[1]
    call_many('ZADD', EXPIRING, members)
    -- Whoever waits for the next that expires has to know of one that does so sooner.
    if call('ZRANGE', EXPIRING, 0, 0)[1] ~= first then ring('control') end
  end
  return stored(reply, remembered)
end
