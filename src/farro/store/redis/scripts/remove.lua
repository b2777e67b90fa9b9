#!lua flags=allow-oom
-- Remove a finished job with its id, names and result. ARGV: time, agent, id.
-- Returns 'ok'; 'no': the job is missing or not final, and stays; 'lost': the agent is dead.
-- A crash leaves all or nothing.
if not alive(ARGV[2]) then return 'lost' end
local id = ARGV[3]
local job = call('HMGET', P .. 'job:' .. id, 'wh', 'role', 'nm')
if again and not job[1] then return 'ok' end
if not job[1] or not FINAL[job[1]] then return 'no' end
call('ZREM', P .. 'at:' .. job[2] .. ':' .. job[1], id)
for name in string.gmatch(job[3] or '', '[^,]+') do
  if call('HGET', P .. 'names', name) == id then call('HDEL', P .. 'names', name) end
end
call('DEL', P .. 'job:' .. id, P .. 'files:' .. id, P .. 'after:' .. id, P .. 'calls-of:' .. id)
return 'ok'
