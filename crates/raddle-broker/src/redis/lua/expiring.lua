-- In front of `submit.lua`: notes when tasks expire. The last argument has a word for each, as `expires_in` reads it.
local lifetimes, stored = ARGV[#ARGV], answer
answer = function(reply, remembered)
  local s, c = string.match(reply[1] or '', '^(%d+)-(%d+)$')
  if s then
    local known, i, place, members = {}, 0, 0, {}
    for k = 1, #reply[2], 2 do
      known[reply[2][k]] = true
    end
    for word in string.gmatch(lifetimes, '%S+') do
      i = i + 1
      if not known[i] then
        local at = expires_in(word)
        if at then
          members[#members + 1] = at
          members[#members + 1] = digits(id_after(tonumber(s), tonumber(c), place))
        end
        place = place + 1
      end
    end
    note_expiries(members)
  end
  return stored(reply, remembered)
end
