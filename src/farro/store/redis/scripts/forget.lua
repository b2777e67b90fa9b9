#!lua flags=allow-oom
-- A dead agent that holds nothing any more goes. ARGV: time, agent. Answers 1 to the one that did it, else 0. Repeated, the one that
-- finds it gone takes it for its own work.
local till = call('ZSCORE', P .. 'leases', ARGV[2])
if not till then return again and 1 or 0 end
if tonumber(till) > beat or call('EXISTS', P .. 'held:' .. ARGV[2]) == 1 then return 0 end
call('HDEL', P .. 'agents', ARGV[2])
return call('ZREM', P .. 'leases', ARGV[2])
