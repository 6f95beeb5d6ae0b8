-- Runs read commands atomically. ARGV: for each command the number of words, and the words. Returns
-- the replies.
local replies, at = {}, FIRST
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  replies[#replies + 1] = call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return replies
