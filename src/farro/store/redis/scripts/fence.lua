#!lua flags=allow-oom
-- Fence an agent whose lease is over: it is dead from now on, whatever a clock says later. ARGV: time, agent, and for an
-- agent that is dead earlier until when its lease is: it is fenced if it has not renewed it since. Else ''.
-- Returns 1 to the one watchdog that fenced it, else 0: it left by itself, was fenced before, or is alive.
local till = tonumber(call('ZSCORE', P .. 'leases', ARGV[2]) or 0)
if again and till == -1 then return 1 end
if till <= 0 or (till > beat and till ~= tonumber(ARGV[3])) then return 0 end
call('ZADD', P .. 'leases', -1, ARGV[2])
return 1
