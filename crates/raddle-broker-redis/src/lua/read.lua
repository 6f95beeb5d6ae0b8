-- Runs commands that only read, all in one moment. ARGV: of each command, how many words it has, and the words. Answers what they answer.
local replies, at = {}, FIRST
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  replies[#replies + 1] = call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return replies
