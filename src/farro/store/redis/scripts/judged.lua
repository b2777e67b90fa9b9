#!lua flags=allow-oom
-- Waiting jobs were looked at and wait on: not to be looked at again, unless something has ended since.
-- ARGV: time, then id and number in `todo` of each. Answers nothing. A crash leaves them in `todo`: looked at once more.
for i = 2, #ARGV - 1, 2 do
  if call('ZSCORE', P .. 'todo', ARGV[i]) == ARGV[i + 1] then call('ZREM', P .. 'todo', ARGV[i]) end
end
return 0
