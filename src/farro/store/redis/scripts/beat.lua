#!lua flags=allow-oom
-- A turn of an agent's loop, and whether it still has a job. ARGV: time, agent, job or '', attempt.
-- Answers 'ok'; 'taken': the job is not its own any more; 'lost': the agent is dead. Changes its lease only.
local agent, id = ARGV[2], ARGV[3]
if id ~= '' then
  local job = call('HMGET', P .. 'job:' .. id, 'wh', 'own', 'att')
  if job[1] ~= 'held' or job[2] ~= agent or job[3] ~= ARGV[4] then return 'taken' end
end
return alive(agent) and 'ok' or 'lost'
