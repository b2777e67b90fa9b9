#!lua flags=allow-oom
-- A line of the audit log that is no change of a job. ARGV: time, the line, the token of this call. Answers its number.
-- Repeated, it is looked for among the newest lines first: the log does not say it twice.
if again then
  for _, entry in ipairs(call('XREVRANGE', P .. 'log', '+', '-', 'COUNT', 1000)) do
    if entry[2][3] == 'k' and entry[2][4] == ARGV[3] then return tonumber(entry[2][1]) end
  end
end
local n = call('INCRBY', P .. 'seq', '1')
call('XADD', P .. 'log', 'MAXLEN', '~', LOG, '*', n, ARGV[2], 'k', ARGV[3])
return n
