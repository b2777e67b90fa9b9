-- The agent ends. ARGV: time, id. Answers nothing. What it still holds is recovered by the next watchdog.
local agent = ARGV[2]
if call('EXISTS', P .. 'held:' .. agent) == 1 then
  if call('ZSCORE', P .. 'leases', agent) then call('ZADD', P .. 'leases', 0, agent) end
else
  call('ZREM', P .. 'leases', agent)
  call('HDEL', P .. 'agents', agent)
end
return 0
