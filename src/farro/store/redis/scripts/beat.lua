#!lua flags=allow-oom
-- Renew an agent's lease, and check whether it still has a job. ARGV: time, agent, job or '', attempt.
-- Returns 'ok'; 'taken': the job is no longer the agent's; 'lost': the agent is dead. Changes only the lease.
local agent, id = ARGV[2], ARGV[3]
if id ~= '' then
  local job = call('HMGET', P .. 'job:' .. id, 'wh', 'own', 'att')
  if job[1] ~= 'held' or job[2] ~= agent or job[3] ~= ARGV[4] then return 'taken' end
end
return alive(agent) and 'ok' or 'lost'
