#!lua flags=allow-oom
-- Resume a paused queue. ARGV: time, role. Returns 1; 0: it was not paused. A repeated call counts as the first.
-- Waiting workers look again: one without tags by the bell, which then wakes the next; those with tags by the feed.
local role = ARGV[2]
if call('HDEL', P .. 'paused', role) == 0 and not again then return 0 end
announce(role, '', '')
return 1
