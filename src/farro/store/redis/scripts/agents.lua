#!lua flags=allow-oom
-- List all agents. ARGV: time. Returns {id, about, 1 if alive, {jobs}} for each. Changes nothing.
local answer = {}
for _, id in ipairs(call('ZRANGE', P .. 'leases', 0, -1)) do
  local till = tonumber(call('ZSCORE', P .. 'leases', id))
  local jobs = call('HKEYS', P .. 'held:' .. id)
  answer[#answer + 1] = {id, call('HGET', P .. 'agents', id) or '{}', till > beat and 1 or 0, jobs}
end
return answer
