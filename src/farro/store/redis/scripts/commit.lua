#!lua flags=allow-oom
-- Commit attempts of one agent, each if the agent still has the job and is alive. The fence is (agent, attempt).
-- ARGV: time, agent, number of attempts, then for each: id, attempt, token of this call, life, place, role, due or 0,
--   the audit line, files as `store_files` reads them, the audit line about children or '', their number, each child
--   as `create` reads it.
-- Returns for each: {'ok', {jobs that waited for it}, number of this change, {children to check again}}; {'taken'}: the
--   job is no longer this agent's; {'lost'}: it is, but the agent is dead.
-- A crash leaves all decisions with their results and children, or none of them.
local agent = ARGV[2]

-- Return the index after the files and children of a commit; ARGV[at] is the number of files.
local function behind(at)
  at = at + 2 + 2 * tonumber(ARGV[at])
  local children = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, children do
    at = at + 12 + tonumber(ARGV[at + 11])
    at = at + 1 + 2 * tonumber(ARGV[at])
  end
  return at
end

-- Check the fence: return the job's fields if it is this agent's, or false and the reply.
local living
local function fenced(at)
  local attempt = ARGV[at + 1]
  local key = P .. 'job:' .. ARGV[at]
  local job = call('HMGET', key, 'wh', 'own', 'att', 'role', 'tg', 'pri', 'fl')
  if job[1] ~= 'held' or job[2] ~= agent or job[3] ~= attempt then
    if again and call('HGET', key, 't' .. attempt) == ARGV[at + 2] then
      return false, {'ok', call('ZRANGE', P .. 'todo', 0, -1), call('HGET', key, 'v'), {}}
    end
    return false, {'taken'}
  end
  if living == nil then living = alive(agent) end
  if not living then return false, {'lost'} end
  return job, false
end

-- Ended jobs are indexed after all changes are logged: one call for each place, not for each job.
local ended, numbers, out, into = {}, {}, {}, {}
local function index(id, n, was, is)
  ended[#ended + 1], numbers[#numbers + 1] = id, n
  out[was], into[is] = out[was] or {}, into[is] or {}
  table.insert(out[was], id)
  table.insert(into[is], '0')
  table.insert(into[is], id)
end

local function commit(at, job, n)
  local id, attempt, token = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local key = P .. 'job:' .. id
  local tg, pri = job[5] or '', job[6] or 2
  local life, wh, role, due = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], tonumber(ARGV[at + 6])
  local next, count = store_files(id, at + 8)
  local fl = count > 0 and 1 or job[7] or 0
  if wh == 'marked' then
    call('SADD', P .. 'marked', id)
    call('HSET', key, 'life', life, 'wh', wh, 'v', n, 't' .. attempt, token, 'fl', fl)
  else
    call('HSET', key, 'life', life, 'wh', wh, 'role', role, 'v', n, 't' .. attempt, token, 'own', '', 'fl', fl)
    if FINAL[wh] then
      index(id, n, job[4] .. ':in_progress', role .. ':' .. wh)
    else
      take_out(id, 'held', job[4], tg, agent)
      put(id, wh, role, tg, pri, n, due)
    end
  end
  local late = {}
  local line, children = ARGV[next], tonumber(ARGV[next + 1])
  next = next + 2
  for _ = 1, children do
    local child, is_late = ARGV[next], false
    if call('EXISTS', P .. 'job:' .. child) == 1 then
      next = next + 12 + tonumber(ARGV[next + 11])
      next = next + 1 + 2 * tonumber(ARGV[next])
    else
      next, is_late = create(next)
    end
    if is_late then late[#late + 1] = child end
  end
  if children > 0 then log_change(line) end
  return {'ok', {}, n, late}
end

local at, starts, jobs, answers, known, accepted = 4, {}, {}, {}, {}, {}
for i = 1, tonumber(ARGV[3]) do
  starts[i] = at
  if known[ARGV[at]] then
    answers[i] = {'taken'}
  else
    known[ARGV[at]] = i
    jobs[i], answers[i] = fenced(at)
    if jobs[i] then accepted[#accepted + 1] = i end
  end
  at = behind(at + 8)
end
if #accepted > 0 then
  local before = call('INCRBY', P .. 'seq', #accepted) - #accepted
  for nth, i in ipairs(accepted) do log_line(before + nth, ARGV[starts[i] + 7]) end
  for nth, i in ipairs(accepted) do answers[i] = commit(starts[i], jobs[i], before + nth) end
end
for place, ids in pairs(out) do call('ZREM', P .. 'at:' .. place, unpack(ids)) end
for place, members in pairs(into) do call('ZADD', P .. 'at:' .. place, unpack(members)) end
if #ended > 0 then
  local keys = {}
  for i, id in ipairs(ended) do keys[i] = P .. 'after:' .. id end
  call('HDEL', P .. 'held:' .. agent, unpack(ended))
  if call('EXISTS', unpack(keys)) > 0 then
    for i, id in ipairs(ended) do answers[known[id]][2] = dependents(id, numbers[i]) end
  end
end
return answers
