#!lua flags=allow-oom
-- List what a watchdog has to recover. ARGV: time, its own agent, schema version.
-- Returns {'lost'}, or {'ok', {id, about, {jobs}} of each dead agent, {job, owner, ...} of jobs marked stale, {job,
--   number, ...} of `todo`}. Jobs of this schema version that another version set aside go back to their queues.
if not alive(ARGV[2]) then return {'lost'} end
local dead = {}
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'leases', '-inf', beat, 'LIMIT', 0, 1000)) do
  if id ~= ARGV[2] then
    dead[#dead + 1] = {id, call('HGET', P .. 'agents', id) or '{}', call('HKEYS', P .. 'held:' .. id)}
  end
end
local marked = {}
for _, id in ipairs(call('SMEMBERS', P .. 'marked')) do
  marked[#marked + 1] = id
  marked[#marked + 1] = call('HGET', P .. 'job:' .. id, 'own') or ''
end
for _, id in ipairs(call('SMEMBERS', P .. 'foreign')) do
  local job = call('HMGET', P .. 'job:' .. id, 'sv', 'wh', 'role', 'tg', 'pri', 'v')
  if job[1] == ARGV[3] or not job[1] then
    call('SREM', P .. 'foreign', id)
    if job[2] == 'queued' then put(id, 'queued', job[3], job[4] or '', job[5] or 2, job[6], 0) end
  end
end
return {'ok', dead, marked, call('ZRANGE', P .. 'todo', 0, 999, 'WITHSCORES')}
