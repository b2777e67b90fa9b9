-- What an attempt came to, if its agent still has the job and is alive. The fence is (agent, attempt).
-- ARGV: time, agent, id, attempt, token of this call, life, where to, role, due or 0, the line, files as `keep` in the
--   prelude reads them, the line about children or '', their number, each as `create` reads it.
-- Answers: {'ok', {jobs that waited for it}, number of this change, {children to look at again}}; {'taken'}: the job is
--   not this agent's any more; {'lost'}: it is, but the agent is dead.
-- A crash leaves the decision whole, with the result and the children, or nothing of it.
local agent, id, attempt, token = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local key = P .. 'job:' .. id
local job = call('HMGET', key, 'wh', 'own', 'att', 'role', 'tg', 'pri', 'fl')
if job[1] ~= 'held' or job[2] ~= agent or job[3] ~= attempt then
  if again and call('HGET', key, 't' .. attempt) == token then
    return {'ok', call('ZRANGE', P .. 'todo', 0, -1), call('HGET', key, 'v'), {}}
  end
  return {'taken'}
end
if not alive(agent) then return {'lost'} end
local wh, role = ARGV[7], ARGV[8]
local n = tell(ARGV[10])
local at, count = keep(id, 11)
local fl = count > 0 and 1 or job[7] or 0
if wh == 'marked' then
  call('SADD', P .. 'marked', id)
  call('HSET', key, 'life', ARGV[6], 'wh', wh, 'v', n, 't' .. attempt, token, 'fl', fl)
else
  lift(id, 'held', job[4], job[5], agent)
  call('HSET', key, 'life', ARGV[6], 'wh', wh, 'role', role, 'v', n, 't' .. attempt, token, 'own', '', 'fl', fl)
  lay(id, wh, role, job[5], job[6], n, tonumber(ARGV[9]))
end
local others = FINAL[wh] and waiting(id, n) or {}
local late = {}
local children = tonumber(ARGV[at + 1])
if children > 0 then
  local line = ARGV[at]
  at = at + 2
  for _ = 1, children do
    local child, is_late = ARGV[at], false
    if call('EXISTS', P .. 'job:' .. child) == 1 then
      at = at + 12 + tonumber(ARGV[at + 11])
      at = at + 1 + 2 * tonumber(ARGV[at])
    else
      at, is_late = create(at)
    end
    if is_late then late[#late + 1] = child end
  end
  tell(line)
end
return {'ok', others, n, late}
