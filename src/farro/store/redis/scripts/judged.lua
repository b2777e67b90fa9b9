#!lua flags=allow-oom
-- Remove jobs from `todo` that were checked and wait on, unless a job they wait for has ended since.
-- ARGV: time, then id and number in `todo` of each. A crash leaves them in `todo`: they are checked once more.
for i = 2, #ARGV - 1, 2 do
  if call('ZSCORE', P .. 'todo', ARGV[i]) == ARGV[i + 1] then call('ZREM', P .. 'todo', ARGV[i]) end
end
return 0
