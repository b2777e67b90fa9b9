#!lua flags=allow-oom
-- An agent whose lease is over is dead from here on, whatever a clock says later. ARGV: time, agent.
-- Answers 1 to the one watchdog that did it, else 0: then it left by itself, was fenced before, or is alive.
local till = tonumber(call('ZSCORE', P .. 'leases', ARGV[2]) or 0)
if again and till == -1 then return 1 end
if till <= 0 or till > beat then return 0 end
call('ZADD', P .. 'leases', -1, ARGV[2])
return 1
