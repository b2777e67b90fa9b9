-- Submit jobs: all are compared with existing ones before any is created.
-- ARGV: time, name or '', the id that the name must have now or '', agent or '', correlation id, policy version, the
--   audit line of the claim, number of jobs, then each job as `create` reads it.
-- Returns: {'ok', {1 for each job that this call created, else 0}, {ids to check again}, now}; {'conflict', id};
--   {'taken', id or ''}; {'lost'}: the agent is dead.
-- A crash leaves all of the jobs or none.
local name, instead, agent = ARGV[2], ARGV[3], ARGV[4]
local count = tonumber(ARGV[8])
local at, starts, made = 9, {}, {}
for i = 1, count do
  -- A minted id is unique to this call: it can exist only if the call is repeated.
  local minted = ARGV[at + 1] == '' and not again
  local known = minted and {} or call('HMGET', P .. 'job:' .. ARGV[at], 'v', 'digest', 'tok')
  if known[1] and (known[2] or '') ~= ARGV[at + 1] then return {'conflict', ARGV[at]} end
  starts[i] = at
  made[i] = known[1] and ((again and (known[3] or '') == ARGV[at + 2]) and 2 or 0) or 1
  at = at + 12 + tonumber(ARGV[at + 11])
  at = at + 1 + 2 * tonumber(ARGV[at])
end
local named = name ~= '' and made[1] ~= 2 -- otherwise the first call set it, and it may have changed since
if named then
  local present = call('HGET', P .. 'names', name) or ''
  if present ~= instead then return {'taken', present} end
end
if agent ~= '' and not alive(agent) then return {'lost'} end
local late = {}
for i = 1, count do
  if made[i] == 1 then
    local _, is_late
    if agent ~= '' then
      _, is_late = create(starts[i], agent, ARGV[5] .. ' ' .. string.format('%.0f', now) .. ' ' .. ARGV[6], ARGV[5])
      log_change(ARGV[7])
    else
      _, is_late = create(starts[i])
    end
    if is_late then late[#late + 1] = ARGV[starts[i]] end
  elseif made[i] == 2 then
    made[i] = 1
  end
end
if named then
  call('HSET', P .. 'names', name, ARGV[9])
  local key = P .. 'job:' .. ARGV[9]
  local had = call('HGET', key, 'nm')
  call('HSET', key, 'nm', had and had .. ',' .. name or name)
end
local stamp = string.format('%.0f', now)
if agent ~= '' and made[1] == 1 then
  stamp = string.match(call('HGET', P .. 'job:' .. ARGV[9], 'cl') or '', '^%S+ (%S+)') or stamp
end
return {'ok', made, late, stamp}
