#!lua flags=allow-oom
-- Apply a decision that is no commit, by compare-and-swap on the number of the job's last change.
-- ARGV: time, agent that decides or '' (no lease is checked), id, number of the change that it read, token of this
--   call, life, place, role, due or 0, the audit line, highest attempt, files as `store_files` reads them.
-- Returns: {'ok', {jobs that waited for it}, number of this change}; {'conflict'}: the job has changed, read it again;
--   {'gone'}; {'lost'}: the agent is dead.
-- A crash leaves the whole decision or nothing of it.
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
local n = log_change(ARGV[10])
local tg, pri = job[4] or '', job[5] or 2
take_out(id, job[2], job[3], tg, job[6])
call('HSET', key, 'life', ARGV[6], 'wh', wh, 'role', role, 'v', n, 'dt', token, 'att', ARGV[11], 'own', '')
put(id, wh, role, tg, pri, n, tonumber(ARGV[9]))
local _, count = store_files(id, 12)
if count > 0 then call('HSET', key, 'fl', 1) end
return {'ok', FINAL[wh] and dependents(id, n) or {}, n}
