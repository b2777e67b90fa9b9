-- An agent whose lease is over is dead from here on, whatever a clock says later. ARGV: time, agent.
-- Answers 1 to the one watchdog that did it, else 0.
local till = call('ZSCORE', P .. 'leases', ARGV[2])
if not till or tonumber(till) == 0 or tonumber(till) > beat then return 0 end
call('ZADD', P .. 'leases', 0, ARGV[2])
return 1
