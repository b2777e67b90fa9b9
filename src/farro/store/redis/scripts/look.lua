#!lua flags=allow-oom
-- Read jobs. ARGV: time, agent that asks or '', 1 to include the prompts of waiting jobs, ids.
-- Returns for each {life, wh, own, att, cl, v, role, prompt}, or an empty list if there is none; 'lost': the agent is
-- dead. Changes only the agent's lease.
if ARGV[2] ~= '' and not alive(ARGV[2]) then return 'lost' end
local answer = {}
for i = 4, #ARGV - 1 do
  local job = call('HMGET', P .. 'job:' .. ARGV[i], 'life', 'wh', 'own', 'att', 'cl', 'v', 'role')
  if job[1] then
    if ARGV[3] == '1' and job[2] == 'waits' then job[8] = call('HGET', P .. 'job:' .. ARGV[i], 'prompt') end
    answer[#answer + 1] = job
  else
    answer[#answer + 1] = {}
  end
end
return answer
