-- Claim the next jobs that an agent may have: strict priority, then entry, from the queues whose tags it offers.
-- ARGV: time, agent, role, its tags (sorted, joined by commas), correlation ids of 32 characters each (the first is the
--   nonce of this call), policy version, schema version, limit, the agent as the audit log names it.
-- More than one job is claimed only if all were never begun and have no files. Above four jobs the limit is half of the
-- queue, so that some are left for idle workers.
-- Returns one of
--   {'ok', number of jobs the agent holds, a quarantined job of another schema version or '', then for each claimed job
--     {id, life, prompt, attempt, at, policy, files or nil, correlation id, score}};
--   {'none', number of jobs the agent holds, the last entry of feed:<Role> if it has tags, when the next delayed job is
--     due or ''}, also if the queue is paused;
--   {'lost'}: the agent is dead;
--   {'foreign', id}: a job of another schema version was set aside; call again.
-- One worker is woken for a job, and wakes the next one if it leaves any.
-- If the caller crashes, it keeps the jobs until its lease is over; recovery counts the attempts.
-- A job leaves its queue only after its change is logged: if the server's user lacks a right, the script stops in its
-- middle, and a job that is still queued is not lost.
local agent, role, tags, corrs, limit = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[8])
if not alive(agent) then
  if tags == '' then ring(role) end -- the bell may have been for this agent: let another one look
  return {'lost'}
end
local held_key = P .. 'held:' .. agent

if again then
  local held, found = call('HGETALL', held_key), {'ok', call('HLEN', held_key), ''}
  for i = 1, limit do
    local corr = string.sub(corrs, 32 * i - 31, 32 * i)
    for j = 1, #held, 2 do
      if held[j + 1] == corr then
        local job = call('HMGET', P .. 'job:' .. held[j], 'life', 'prompt', 'att', 'fl', 'cl')
        local at, policy = string.match(job[5], '^%S+ (%S+) (.*)$')
        local files = job[4] == '1' and call('HGETALL', P .. 'files:' .. held[j]) or false
        found[#found + 1] = {held[j], job[1], job[2], job[3], at, policy, files, corr, ''}
      end
    end
  end
  if #found > 3 then return found end
end

if call('HGET', P .. 'paused', role) then return {'none', call('HLEN', held_key), '0-0', ''} end

local due = call('ZRANGEBYSCORE', P .. 'due:' .. role, '-inf', now, 'LIMIT', 0, 1000)
for _, id in ipairs(due) do
  local job = call('HMGET', P .. 'job:' .. id, 'tg', 'sc')
  call('ZREM', P .. 'due:' .. role, id)
  if job[2] then
    call('ZADD', P .. 'q:' .. role .. ':' .. (job[1] or ''), job[2], id)
    if (job[1] or '') ~= '' then call('SADD', P .. 'tags:' .. role, job[1]) end
  end
end

local queue = P .. 'q:' .. role .. ':'

-- The queues that the agent may claim from, each with its next job that is not yet a candidate.
local queues, queued = {}, 0
local function look(wanted, at)
  local head = call('ZRANGE', queue .. wanted, at, at, 'WITHSCORES')
  if head[1] then queues[wanted] = {at = at, id = head[1], score = head[2]} else queues[wanted] = nil end
  return head[1]
end
if tags ~= '' then
  local offered = {}
  for tag in string.gmatch(tags, '[^,]+') do offered[tag] = true end
  for _, wanted in ipairs(call('SMEMBERS', P .. 'tags:' .. role)) do
    local fits = true
    for tag in string.gmatch(wanted, '[^,]+') do fits = fits and offered[tag] end
    if fits then
      if look(wanted, 0) then
        queued = queued + call('ZCARD', queue .. wanted)
      else
        call('SREM', P .. 'tags:' .. role, wanted)
      end
    end
  end
end

-- The candidates, in order.
if limit > 4 then limit = math.min(limit, math.max(4, math.ceil((queued + call('ZCARD', queue)) / 2))) end
local ids, scores, froms = {}, {}, {}
if queued == 0 then
  local heads = call('ZRANGE', queue, 0, limit - 1, 'WITHSCORES')
  for i = 1, #heads / 2 do ids[i], scores[i], froms[i] = heads[2 * i - 1], heads[2 * i], '' end
else
  look('', 0)
  while #ids < limit do
    local best, from = math.huge, nil
    for wanted, head in pairs(queues) do
      if tonumber(head.score) < best then best, from = tonumber(head.score), wanted end
    end
    if not from then break end
    local head = queues[from]
    ids[#ids + 1], scores[#ids + 1], froms[#ids + 1] = head.id, head.score, from
    look(from, head.at + 1)
  end
end

-- Decide how many of the candidates the agent gets.
local jobs, taken, foreign = {}, 0, ''
for i = 1, #ids do
  local job = call('HMGET', P .. 'job:' .. ids[i], 'life', 'prompt', 'att', 'fl', 'sv')
  if job[5] ~= ARGV[7] then
    if job[5] then call('SADD', P .. 'foreign', ids[i]) end
    call('ZREM', queue .. froms[i], ids[i])
    foreign = ids[i]
    break
  end
  local alone = limit > 1 and (tonumber(job[3] or 0) > 0 or job[4] == '1')
  if alone and i > 1 then break end
  jobs[i], taken = job, i
  if alone then break end
end
if taken == 0 then
  if foreign ~= '' then
    ring(role) -- let another worker claim what follows, in case this caller does not call again
    return {'foreign', foreign}
  end
  local last = tags ~= '' and call('XREVRANGE', P .. 'feed:' .. role, '+', '-', 'COUNT', 1)[1]
  local next = call('ZRANGE', P .. 'due:' .. role, 0, 0, 'WITHSCORES')
  return {'none', call('HLEN', held_key), last and last[1] or '0-0', next[2] or ''}
end

local at = string.format('%.0f', now)
local found, working, held, attempts = {'ok', 0, foreign}, {}, {}, {}
local before = call('INCRBY', P .. 'seq', taken) - taken
for i = 1, taken do
  local corr = string.sub(corrs, 32 * i - 31, 32 * i)
  attempts[i] = (tonumber(jobs[i][3]) or 0) + 1
  held[2 * i - 1], held[2 * i] = ids[i], corr
  log_line(before + i, '{"event":"claimed","actor":"' .. ARGV[9] .. '","job_id":"' .. ids[i] .. '","role":"' .. role ..
    '","from":"queued","status":"in_progress","attempt":' .. attempts[i] .. ',"correlation_id":"' .. corr .. '"}')
end
if queued == 0 then
  call('ZREM', queue, unpack(ids, 1, taken))
else
  for i = 1, taken do call('ZREM', queue .. froms[i], ids[i]) end
end
for i = 1, taken do
  local id, job, corr = ids[i], jobs[i], held[2 * i]
  call('HSET', P .. 'job:' .. id, 'own', agent, 'att', attempts[i], 'cl', corr .. ' ' .. at .. ' ' .. ARGV[6],
    'wh', 'held', 'v', before + i)
  working[2 * i - 1], working[2 * i] = '0', id
  local files = job[4] == '1' and call('HGETALL', P .. 'files:' .. id) or false
  found[3 + i] = {id, job[1], job[2], attempts[i], at, ARGV[6], files, corr, scores[i]}
end
call('ZREM', P .. 'at:' .. role .. ':queued', unpack(ids, 1, taken))
call('ZADD', P .. 'at:' .. role .. ':in_progress', unpack(working))
call('HSET', held_key, unpack(held))
found[2] = call('HLEN', held_key)
if call('ZCARD', queue) > 0 then ring(role) end
return found
