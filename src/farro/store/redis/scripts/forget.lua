#!lua flags=allow-oom
-- Remove a dead agent that holds no job. ARGV: time, agent. Returns 1 to the one caller that removed it, else 0.
-- A repeated call that finds it gone counts the removal as its own.
local till = call('ZSCORE', P .. 'leases', ARGV[2])
if not till then return again and 1 or 0 end
if tonumber(till) > beat or call('EXISTS', P .. 'held:' .. ARGV[2]) == 1 then return 0 end
call('HDEL', P .. 'agents', ARGV[2])
return call('ZREM', P .. 'leases', ARGV[2])
