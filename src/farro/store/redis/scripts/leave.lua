#!lua flags=allow-oom
-- The agent ends. ARGV: time, id, its role where it claimed jobs without tags. Answers nothing. What it still holds is
-- recovered by the next watchdog. When the next delayed job is due may have been told to it alone: another is to look.
local agent, role = ARGV[2], ARGV[3]
if role ~= '' and call('EXISTS', P .. 'due:' .. role) == 1 then ring(role) end
if call('EXISTS', P .. 'held:' .. agent) == 1 then
  if call('ZSCORE', P .. 'leases', agent) then call('ZADD', P .. 'leases', 0, agent) end
else
  call('ZREM', P .. 'leases', agent)
  call('HDEL', P .. 'agents', agent)
end
return 0
