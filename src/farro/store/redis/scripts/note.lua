#!lua flags=allow-oom
-- Write a line of the audit log that is no change of a job. ARGV: time, the line, the token of this call.
-- Returns its number. A repeated call first searches the newest lines for its token, so the line is not written twice.
if again then
  for _, entry in ipairs(call('XREVRANGE', P .. 'log', '+', '-', 'COUNT', 1000)) do
    if entry[2][3] == 'k' and entry[2][4] == ARGV[3] then return tonumber(entry[2][1]) end
  end
end
local n = call('INCRBY', P .. 'seq', '1')
call('XADD', P .. 'log', 'MAXLEN', '~', LOG, '*', n, ARGV[2], 'k', ARGV[3])
return n
