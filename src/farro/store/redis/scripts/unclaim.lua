#!lua flags=allow-oom
-- Puts jobs that an agent claimed and did not begin back to where they were in their queues, as if it had never had
-- them: the same score, and no attempt. One that is not in its hands any more is left alone.
-- ARGV: time, agent, number of jobs, then of each: id, attempt, score, the line.
-- Answers how many were put back. A repeated call finds nothing to do.
-- A crash of the caller changes nothing: recovery finds them in its hands.
local agent, count = ARGV[2], 0
for i = 4, 3 + 4 * tonumber(ARGV[3]), 4 do
  local id = ARGV[i]
  local key = P .. 'job:' .. id
  local job = call('HMGET', key, 'wh', 'own', 'att', 'role', 'tg')
  if job[1] == 'held' and job[2] == agent and job[3] == ARGV[i + 1] then
    local role, tg = job[4], job[5] or ''
    local n = tell(ARGV[i + 3])
    lift(id, 'held', role, tg, agent)
    call('HSET', key, 'wh', 'queued', 'own', '', 'att', tonumber(job[3]) - 1, 'v', n)
    call('ZADD', P .. 'at:' .. role .. ':queued', 0, id)
    call('ZADD', P .. 'q:' .. role .. ':' .. tg, ARGV[i + 2], id)
    if tg ~= '' then call('SADD', P .. 'tags:' .. role, tg) end
    fed(role, tg, id)
    count = count + 1
  end
end
return count
