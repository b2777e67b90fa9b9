-- What the scripts of the Redis store share: the keys, and how a job is moved from one place to another.
-- Python decides what a lifecycle may do (farro.jobs.moves); scripts only compare a fence and swap.
-- Blank lines divide the parts below. A script is sent with those parts whose names it uses (scripts.py).
--
-- Every key begins with KEYS[1] = `farro:{NAME}:`. The braces are a hash tag: all keys of one name are in one slot.
--
--   job:<id>            hash  life    the last decided lifecycle, as JSON without empty fields. A claim is not in it:
--                             see `cl`
--                             prompt  prompt.json, canonical
--                             digest  of the content, if the id was chosen; none if farro minted the id
--                             tok     the call that created it, if the id was chosen: identifies a repeated call
--                             wh      its place: queued waits held marked stale open succeeded failed killed
--                             role tg pri  its role, its tags (sorted, joined by commas; none: no tags), its
--                             priority 0..3 (none: 2)
--                             sc      its score in its queue, while it is delayed
--                             own att cl   the agent that has it, the highest attempt, and for the last claim:
--                             `correlation-id at policy`
--                             v       the number of its last change, which compare-and-swap compares
--                             dt      the token of the last decision that was no commit
--                             t<n>    the token of the commit of attempt n: identifies a repeated commit
--                             nm      the names that it was given, joined by commas
--                             sv      the schema version of `life`; fl: 1 if it has files
--   files:<id>          hash  prompt.md, payload/<name>, carried/<name>, a/<attempt>/<name>: content; a/<attempt>: what
--                             was cut or is in the shared directory
--   at:<Role>:<status>  zset  the index: ids in order (all scores are 0). Its sizes are the counts
--   q:<Role>:<tags>     zset  the jobs that can be claimed: score = priority * 2^50 + entry
--   tags:<Role>         set   the tags of that role's queues, except of the queue without tags
--   due:<Role>          zset  delayed jobs: score = due, in ms of the server's clock
--   waits:<Role>        set   jobs that wait for other jobs or for a person
--   after:<id>          set   jobs that wait for that job
--   todo                zset  waiting jobs that are to be checked, because a job they wait for has ended
--   stale, open, marked set   stale jobs; failures that are not final; jobs marked stale that their agent still holds
--   paused              hash  role -> {by, at, why}: no job of its queue is claimed
--   foreign             set   jobs of a schema version that the claiming process did not know
--   names               hash  name -> id
--   agents              hash  id -> {role, tags, identity}
--   leases              zset  id -> until when it is alive, in ms of the server's clock; 0: it left; -1: fenced
--   held:<agent>        hash  job -> correlation id of its claim
--   seq                 int   the number of the last change
--   log                 stream of all changes and of the audit log; a field of an entry is its number;
--                     `k` is the call that wrote a line which is no change
--   feed:<Role>         stream of entries into that queue; an entry without an id ends a pause
--   bell:<Role>         zset  empty, or one member: a job without tags came, and no worker without tags has looked since.
--                             Workers wait here (BZPOPMIN), and only one is woken
--   lib:*               plans and actions (library.py)
--   accounts            hash  the paused accounts of providers (accounts.py)
--   calls:* calls-of:* call-days calls-made   what agents' calls cost (ledger.py)
--   seat:*              leader leases (agents.py)
--
-- A script is atomic: a crash of the server leaves all of it or nothing (as far as its persistence goes), a crash of the
-- caller changes nothing. ARGV[1] is the time, `wall ms:lease ms`, in tests; otherwise empty: the server's clock is used.
-- The last argument is 1 if the call is repeated because its answer was lost.
-- A script that begins with `allow-oom` also runs when the server's memory is full: then no new job is accepted and no
-- job begins, but running jobs go on and end, and finished jobs can be removed.

local P = KEYS[1]
local call = redis.call

local now, beat
if ARGV[1] == '' then
  local t = call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
  beat = now
else
  local wall, lease = string.match(ARGV[1], '^(-?%d+):(%d+)$')
  now, beat = tonumber(wall), tonumber(lease)
end

local again = ARGV[#ARGV] == '1'

local STATUS = {queued = 'queued', waits = 'queued', held = 'in_progress', marked = 'in_progress', stale = 'stale',
  open = 'failed', succeeded = 'succeeded', failed = 'failed', killed = 'killed'}

local FINAL = {succeeded = true, failed = true, killed = true}

-- Return whether the agent is alive, and renew its lease. An agent that is late but holds no job may go on: nothing can
-- have been taken from it.
local function alive(agent)
  local till = tonumber(call('ZSCORE', P .. 'leases', agent) or 0)
  if till <= 0 then return false end
  if till <= beat and call('EXISTS', P .. 'held:' .. agent) == 1 then return false end
  if till - beat < LEASE - 500 then call('ZADD', P .. 'leases', beat + LEASE, agent) end
  return true
end

-- Write one line of the common log; `n` is its number in the whole store. Numbers for several lines are taken at once
-- (INCRBY seq) only if the lines follow each other directly: readers detect by the numbers what was trimmed.
local function log_line(n, line) call('XADD', P .. 'log', 'MAXLEN', '~', LOG, '*', n, line) end

local function log_change(line)
  local n = call('INCRBY', P .. 'seq', '1')
  log_line(n, line)
  return n
end

-- Wake one of the workers that wait for jobs without tags; if none waits, the next one to wait looks first.
local function ring(role)
  call('ZADD', P .. 'bell:' .. role, '0', '!')
end

-- Announce an entry into a queue: to a worker without tags by the bell, to all others by the feed.
local function announce(role, tg, id)
  if tg == '' then ring(role) end
  call('XADD', P .. 'feed:' .. role, 'MAXLEN', '~', FEED, '*', 'j', id)
end

-- Return the score of a job in its queue: strict priority, then the number of its entry.
local function score(pri, n) return string.format('%.0f', pri * 1125899906842624 + n) end

-- Put a job that is in no place into its queue.
local function enter(id, role, tg, pri, n)
  call('ZADD', P .. 'at:' .. role .. ':queued', '0', id)
  call('ZADD', P .. 'q:' .. role .. ':' .. tg, score(pri, n), id)
  if tg ~= '' then call('SADD', P .. 'tags:' .. role, tg) end
  announce(role, tg, id)
end

-- Put a job that is in no place into place `wh`. `due` is 0 if it is not delayed.
local function put(id, wh, role, tg, pri, n, due)
  if wh == 'queued' and due <= now then return enter(id, role, tg, pri, n) end
  call('ZADD', P .. 'at:' .. role .. ':' .. STATUS[wh], '0', id)
  if wh == 'queued' then
    call('ZADD', P .. 'due:' .. role, due, id)
    call('HSET', P .. 'job:' .. id, 'sc', score(pri, n))
    announce(role, tg, id)
  elseif wh == 'waits' then
    call('SADD', P .. 'waits:' .. role, id)
  elseif wh == 'stale' or wh == 'open' or wh == 'marked' then
    call('SADD', P .. wh, id)
  end
end

-- Take a job out of its place.
local function take_out(id, wh, role, tg, own)
  call('ZREM', P .. 'at:' .. role .. ':' .. STATUS[wh], id)
  if wh == 'held' then
    call('HDEL', P .. 'held:' .. own, id)
  elseif wh == 'queued' then
    if call('ZREM', P .. 'q:' .. role .. ':' .. tg, id) == 0 then call('ZREM', P .. 'due:' .. role, id) end
    call('SREM', P .. 'foreign', id)
  elseif wh == 'waits' then
    call('SREM', P .. 'waits:' .. role, id)
    call('ZREM', P .. 'todo', id)
  elseif wh == 'marked' then
    call('SREM', P .. 'marked', id)
    call('HDEL', P .. 'held:' .. own, id)
  elseif wh == 'stale' or wh == 'open' then
    call('SREM', P .. wh, id)
  end
end

-- Return the jobs that waited for an ended job. The caller checks each; if it dies, a watchdog does.
local function dependents(id, n)
  local others = call('SMEMBERS', P .. 'after:' .. id)
  for _, other in ipairs(others) do call('ZADD', P .. 'todo', n, other) end
  if #others > 0 then call('DEL', P .. 'after:' .. id) end
  return others
end

-- Store files of a job from ARGV[at]: their number, then name and content of each. Returns the next index.
local function store_files(id, at)
  local count = tonumber(ARGV[at])
  local last = at + 2 * count
  for i = at + 1, last, 1000 do call('HSET', P .. 'files:' .. id, unpack(ARGV, i, math.min(i + 999, last))) end
  return at + 1 + 2 * count, count
end

-- Write the record of a new job; return the number of this change.
local function create_record(id, role, wh, tg, pri, sv, life, prompt, line)
  local n, key = log_change(line), P .. 'job:' .. id
  call('HSET', key, 'life', life, 'prompt', prompt, 'role', role, 'wh', wh, 'v', n, 'sv', sv)
  if tg ~= '' or pri ~= '2' then call('HSET', key, 'tg', tg, 'pri', pri) end
  return n
end

-- Create a job from ARGV[at]: id digest tok role tags priority due sv life prompt line, the jobs that it waits for, its
-- files. `agent`: that agent claims it at once. Returns the next index, and whether a job it waits for has ended already.
local function create(at, agent, cl, corr)
  local id, role, tg, pri, due = ARGV[at], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], tonumber(ARGV[at + 6])
  local blocks = tonumber(ARGV[at + 11])
  local wh = agent and 'held' or (blocks > 0 and 'waits' or 'queued')
  local key = P .. 'job:' .. id
  local n = create_record(id, role, wh, tg, pri, ARGV[at + 7], ARGV[at + 8], ARGV[at + 9], ARGV[at + 10])
  if ARGV[at + 1] ~= '' then call('HSET', key, 'digest', ARGV[at + 1], 'tok', ARGV[at + 2]) end
  local late = false
  for i = at + 12, at + 11 + blocks do
    local state = call('HGET', P .. 'job:' .. ARGV[i], 'wh')
    if state and not FINAL[state] then call('SADD', P .. 'after:' .. ARGV[i], id) else late = true end
  end
  local next, count = store_files(id, at + 12 + blocks)
  if count > 0 then call('HSET', key, 'fl', 1) end
  if agent then
    call('HSET', key, 'own', agent, 'att', 1, 'cl', cl)
    call('HSET', P .. 'held:' .. agent, id, corr)
  end
  put(id, wh, role, tg, pri, n, due)
  if late and not agent then call('ZADD', P .. 'todo', n, id) end
  return next, late
end
