#!lua flags=allow-oom
-- Put jobs that an agent claimed but did not begin back to their old positions, as if it had never had them: the
-- same score, and no attempt. A job that the agent no longer has is skipped.
-- ARGV: time, agent, number of jobs, then for each: id, attempt, score, the audit line.
-- Returns how many were put back. A repeated call finds nothing to do.
-- If the caller crashes before, nothing changes: recovery finds the jobs with the agent.
local agent, count = ARGV[2], 0
for i = 4, 3 + 4 * tonumber(ARGV[3]), 4 do
  local id = ARGV[i]
  local key = P .. 'job:' .. id
  local job = call('HMGET', key, 'wh', 'own', 'att', 'role', 'tg')
  if job[1] == 'held' and job[2] == agent and job[3] == ARGV[i + 1] then
    local role, tg = job[4], job[5] or ''
    local n = log_change(ARGV[i + 3])
    take_out(id, 'held', role, tg, agent)
    call('HSET', key, 'wh', 'queued', 'own', '', 'att', tonumber(job[3]) - 1, 'v', n)
    call('ZADD', P .. 'at:' .. role .. ':queued', 0, id)
    call('ZADD', P .. 'q:' .. role .. ':' .. tg, ARGV[i + 2], id)
    if tg ~= '' then call('SADD', P .. 'tags:' .. role, tg) end
    announce(role, tg, id)
    count = count + 1
  end
end
return count
