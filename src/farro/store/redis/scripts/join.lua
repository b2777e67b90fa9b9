#!lua flags=allow-oom
-- Add an agent; it has its lease as soon as it is visible. ARGV: time, id, {role, tags, identity}. Returns the time.
-- A crash leaves an agent that recovery removes when its lease is over.
call('ZADD', P .. 'leases', beat + LEASE, ARGV[2])
call('HSET', P .. 'agents', ARGV[2], ARGV[3])
return string.format('%.0f', now)
