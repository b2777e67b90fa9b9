#!lua flags=allow-oom
-- A decision about a job that is no commit: compare-and-swap by the number of its last change.
-- ARGV: time, agent that decides or '' (then anyone may), id, number of the change that it saw, token of this call, life, where to, role, due or
--   0, the line, highest attempt, files as `keep` in the prelude reads them.
-- Answers: {'ok', {jobs that waited for it}, number of this change}; {'conflict'}: somebody changed it, look again;
--   {'gone'}; {'lost'}: the agent is dead.
-- A crash leaves the decision whole or nothing of it.
local id, token = ARGV[3], ARGV[5]
local key = P .. 'job:' .. id
local job = call('HMGET', key, 'v', 'wh', 'role', 'tg', 'pri', 'own', 'dt')
if not job[1] then return {'gone'} end
if job[1] ~= ARGV[4] then
  if again and job[7] == token then return {'ok', call('ZRANGE', P .. 'todo', 0, -1), job[1]} end
  return {'conflict'}
end
if ARGV[2] ~= '' and not alive(ARGV[2]) then return {'lost'} end
local wh, role = ARGV[7], ARGV[8]
local n = tell(ARGV[10])
local tg, pri = job[4] or '', job[5] or 2
lift(id, job[2], job[3], tg, job[6])
call('HSET', key, 'life', ARGV[6], 'wh', wh, 'role', role, 'v', n, 'dt', token, 'att', ARGV[11], 'own', '')
lay(id, wh, role, tg, pri, n, tonumber(ARGV[9]))
local _, count = keep(id, 12)
if count > 0 then call('HSET', key, 'fl', 1) end
return {'ok', FINAL[wh] and waiting(id, n) or {}, n}
