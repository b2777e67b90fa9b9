-- Claims the next job that an agent may have: strict priority, then entry, among the queues whose tags it offers.
-- ARGV: time, agent, role, its tags (sorted, with commas), correlation id (which is the nonce of this call), policy
--   version, schema version.
-- Answers: {'ok', id, life, prompt, attempt, at, policy, files or nil, number of jobs in its hands}; {'none', that
--   number}; {'lost'}: the agent is dead; {'foreign', id}: a job of another schema version was put aside, ask again.
-- A crash of the caller leaves the job in its hands: recovery counts the attempt.
local agent, role, tags, corr = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if not alive(agent) then return {'lost'} end

local function answer(id, job, attempt, at, policy)
  local files = job[4] == '1' and call('HGETALL', P .. 'files:' .. id) or false
  return {'ok', id, job[1], job[2], attempt, at, policy, files, call('HLEN', P .. 'held:' .. agent)}
end

if again then
  local held = call('HGETALL', P .. 'held:' .. agent)
  for i = 1, #held, 2 do
    if held[i + 1] == corr then
      local job = call('HMGET', P .. 'job:' .. held[i], 'life', 'prompt', 'att', 'fl', 'cl')
      local at, policy = string.match(job[5], '^%S+ (%S+) (.*)$')
      return answer(held[i], job, job[3], at, policy)
    end
  end
end

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
local from = ''
if tags ~= '' then
  local offered = {}
  for tag in string.gmatch(tags, '[^,]+') do offered[tag] = true end
  local head = call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  local best = head[2] and tonumber(head[2]) or math.huge
  for _, wanted in ipairs(call('SMEMBERS', P .. 'tags:' .. role)) do
    local fits = true
    for tag in string.gmatch(wanted, '[^,]+') do fits = fits and offered[tag] end
    if fits then
      head = call('ZRANGE', queue .. wanted, 0, 0, 'WITHSCORES')
      if not head[1] then
        call('SREM', P .. 'tags:' .. role, wanted)
      elseif tonumber(head[2]) < best then
        best, from = tonumber(head[2]), wanted
      end
    end
  end
end
local popped = call('ZPOPMIN', queue .. from)
local id = popped[1]
if not id then return {'none', call('HLEN', P .. 'held:' .. agent)} end
local key = P .. 'job:' .. id
local job = call('HMGET', key, 'life', 'prompt', 'att', 'fl', 'sv')
if job[5] ~= ARGV[7] then
  if job[5] then call('SADD', P .. 'foreign', id) end
  return {'foreign', id}
end
local attempt = (tonumber(job[3]) or 0) + 1
local at = string.format('%.0f', now)
local n = tell('{"event":"claimed","actor":"' .. agent .. '","job_id":"' .. id .. '","role":"' .. role ..
  '","from":"queued","status":"in_progress","attempt":' .. attempt .. ',"correlation_id":"' .. corr .. '"}')
call('HSET', key, 'own', agent, 'att', attempt, 'cl', corr .. ' ' .. at .. ' ' .. ARGV[6], 'wh', 'held', 'v', n)
call('ZREM', P .. 'at:' .. role .. ':queued', id)
call('ZADD', P .. 'at:' .. role .. ':in_progress', 0, id)
call('HSET', P .. 'held:' .. agent, id, corr)
return answer(id, job, attempt, at, ARGV[6])
