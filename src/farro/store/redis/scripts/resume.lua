#!lua flags=allow-oom
-- A queue gives out jobs again. ARGV: time, role. Answers 1; 0: it was not paused. Repeated, it is as if this call had done it.
-- Whoever waits there looks: one by the bell, and it wakes the next; those with tags by the feed.
local role = ARGV[2]
if call('HDEL', P .. 'paused', role) == 0 and not again then return 0 end
fed(role, '', '')
return 1
