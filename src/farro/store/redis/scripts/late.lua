#!lua flags=allow-oom
-- List the agents that hold jobs and have not renewed their leases for a while, and count the stale jobs.
-- ARGV: time, that while in ms, how far the caller's last call looked or '', number of roles, the roles, the agents that
--   its last call returned.
-- Returns {how far this call looked, {id, about, until when its lease is, ms since it was renewed} for each, number of
--   stale jobs, their ids if they are few}. Changes nothing.
-- An agent becomes late once after each renewal, and a claim renews: so only those that became late since the last call
-- are looked at, one for each renewal that came in such a time, however many agents are idle.
local late, till = {}, beat + LEASE - ARGV[2]
local function add(id)
  local lease = tonumber(call('ZSCORE', P .. 'leases', id) or 0)
  if lease > beat and lease <= till and call('EXISTS', P .. 'held:' .. id) == 1 then
    late[#late + 1] = {id, call('HGET', P .. 'agents', id) or '{}', string.format('%.0f', lease), beat + LEASE - lease}
  end
end

local roles = tonumber(ARGV[4])
for i = 5 + roles, #ARGV - 1 do add(ARGV[i]) end
if ARGV[3] ~= '' then
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'leases', '(' .. ARGV[3], till)) do add(id) end
end

local count, stale = 0, {}
for i = 5, 4 + roles do count = count + call('ZCARD', P .. 'at:' .. ARGV[i] .. ':stale') end
if count <= 100 then
  for i = 5, 4 + roles do
    for _, id in ipairs(call('ZRANGE', P .. 'at:' .. ARGV[i] .. ':stale', 0, -1)) do stale[#stale + 1] = id end
  end
end
return {till, late, count, stale}
