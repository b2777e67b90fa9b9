-- Submits one job of which there is nothing more to say: farro made its id, it waits for nothing, and has no files.
-- `enqueue` does the same of such a job, among others; most jobs are such, and their submitter waits for this.
-- ARGV: time, id, role, tags, priority, schema version, life, prompt, line.
-- A repeated call finds it made. A crash leaves all of it or nothing.
local id, role, tg, pri = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if again and call('EXISTS', P .. 'job:' .. id) == 1 then return 1 end
enter(id, role, tg, pri, make(id, role, 'queued', tg, pri, ARGV[6], ARGV[7], ARGV[8], ARGV[9]))
return 1
