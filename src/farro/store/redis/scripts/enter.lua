-- Submit one simple job: farro minted its id, it waits for nothing, and it has no files.
-- `enqueue` can do the same. Most jobs are like this, and their submitter waits for the reply, so this one is shorter.
-- ARGV: time, id, role, tags, priority, schema version, life, prompt, audit line.
-- A repeated call finds the job created. A crash leaves all of it or nothing.
local id, role, tg, pri = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if again and call('EXISTS', P .. 'job:' .. id) == 1 then return 1 end
enter(id, role, tg, pri, create_record(id, role, 'queued', tg, pri, ARGV[6], ARGV[7], ARGV[8], ARGV[9]))
return 1
