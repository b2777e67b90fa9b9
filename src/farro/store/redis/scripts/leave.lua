#!lua flags=allow-oom
-- Remove an agent. ARGV: time, id, its role if it claimed jobs without tags. The next watchdog recovers what it holds.
-- It may be the only one that knows when the next delayed job is due, so another worker is woken to look.
local agent, role = ARGV[2], ARGV[3]
if role ~= '' and call('EXISTS', P .. 'due:' .. role) == 1 then ring(role) end
if call('EXISTS', P .. 'held:' .. agent) == 1 then
  if call('ZSCORE', P .. 'leases', agent) then call('ZADD', P .. 'leases', 0, agent) end
else
  call('ZREM', P .. 'leases', agent)
  call('HDEL', P .. 'agents', agent)
end
return 0
