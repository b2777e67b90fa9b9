-- What the scripts of the Redis store have in common: the key space, and how a job is put from one place into another.
-- What a lifecycle may do is decided in Python (kernel.moves): scripts compare a fence and swap, nothing else.
-- Of the parts below, which blank lines divide, a script has those before it whose names it says (scripts.py).
--
-- Every key begins with KEYS[1] = `farro:{NAME}:`. The braces are a hash tag: all keys of one name lie in one slot.
--
--   job:<id>            hash  life    the last decided lifecycle, as JSON without the fields that say nothing. A claim
--                             is not in it: see `cl`
--                             prompt  prompt.json, canonical
--                             digest  of the content of a chosen id; none where farro made the id
--                             tok     the call that made it, for a chosen id: a repeated call is known by it
--                             wh      where it lies: queued waits held marked stale open succeeded failed killed
--                             role tg pri  its role, its tags (sorted, with commas; none: no tags), its
--                             priority 0..3 (none: 2)
--                             sc      its score in its queue, while it is delayed
--                             own att cl   whose it is, the highest attempt, and of the last claim: `corr at policy`
--                             v       the number of its last change: what compare-and-swap compares
--                             dt      the token of the last decision that was no commit
--                             t<n>    the token of the commit of attempt n: a repeated commit is known by it
--                             nm      the names that it was given, with commas
--                             sv      the schema version of `life`; fl: it has files
--   files:<id>          hash  prompt.md, payload/<name>, carried/<name>, a/<attempt>/<name>: content; a/<attempt>: what
--                             was cut or lies elsewhere
--   at:<Role>:<status>  zset  the index: ids in their order (all scores 0). Its sizes are the counts
--   q:<Role>:<tags>     zset  what can be claimed: score = priority * 2^50 + entry
--   tags:<Role>         set   the tags of queues of that role that are not without tags
--   due:<Role>          zset  delayed jobs: score = due, in ms of the server's clock
--   waits:<Role>        set   jobs that wait for others, or for a person
--   after:<id>          set   jobs that wait for that job
--   todo                zset  waiting jobs of which one that they wait for has ended, and nobody has looked yet
--   stale, open, marked set   stale jobs; failures that are not final; jobs marked stale in their agent's hands
--   paused              hash  role -> {by, at, why}: its queue gives out no job
--   foreign             set   jobs of a schema version that whoever met them did not know
--   names               hash  name -> id
--   agents              hash  id -> {role, tags, identity}
--   leases              zset  id -> until when it is alive, in ms of the server's clock; 0: it left; -1: fenced
--   held:<agent>        hash  job -> correlation id of its claim
--   seq                 int   the number of the last change
--   log                 stream of all changes and of the audit log; a field of an entry is its number;
--                     `k` the call that wrote a line which is no change
--   feed:<Role>         stream of entries into that queue; one without an id: it goes on after a pause
--   bell:<Role>         zset  empty, or one member: a job without tags came, and no worker without tags has looked since.
--                             Who waits there is alone in being woken (BZPOPMIN)
--   lib:*               plans and actions (stores/redis/library.py)
--   seat:*              the manager's seat (services/seat.py)
--
-- A script is atomic: a crash of the server leaves all of it or nothing (as its persistence promises), a crash of the
-- caller changes nothing. ARGV[1] is the time, `wall ms:lease ms`, and empty but for tests: then it is the server's own.
-- The last argument is 1 when the call is repeated because its answer was lost.
-- A script that begins with `allow-oom` is run by a server that is full, too: that takes no new jobs and lets no further
-- ones begin, but what runs goes on and ends, and finished jobs can be removed.

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

-- Whether the agent may act; renews its lease. One that is late and holds nothing may go on: nothing can have been
-- taken from it.
local function alive(agent)
  local till = tonumber(call('ZSCORE', P .. 'leases', agent) or 0)
  if till <= 0 then return false end
  if till <= beat and call('EXISTS', P .. 'held:' .. agent) == 1 then return false end
  if till - beat < LEASE * 0.9 then call('ZADD', P .. 'leases', beat + LEASE, agent) end
  return true
end

-- One line of the common log; its number is the entry's own in the whole store. Numbers are taken for several lines at
-- once (INCRBY seq) where these come one right after the other: readers see by them what was cut off.
local function write(n, line) call('XADD', P .. 'log', 'MAXLEN', '~', LOG, '*', n, line) end

local function tell(line)
  local n = call('INCRBY', P .. 'seq', '1')
  write(n, line)
  return n
end

-- Wakes one of the workers that wait for jobs without tags; where none does, the next to wait looks again.
local function ring(role)
  call('ZADD', P .. 'bell:' .. role, '0', '!')
end

-- Tells of an entry into a queue: the workers without tags by the bell, everybody else by the feed.
local function fed(role, tg, id)
  if tg == '' then ring(role) end
  call('XADD', P .. 'feed:' .. role, 'MAXLEN', '~', FEED, '*', 'j', id)
end

-- Its score in its queue: strict priority, then the number of its entry.
local function score(pri, n) return string.format('%.0f', pri * 1125899906842624 + n) end

-- Puts a job that lies nowhere into its queue.
local function enter(id, role, tg, pri, n)
  call('ZADD', P .. 'at:' .. role .. ':queued', '0', id)
  call('ZADD', P .. 'q:' .. role .. ':' .. tg, score(pri, n), id)
  if tg ~= '' then call('SADD', P .. 'tags:' .. role, tg) end
  fed(role, tg, id)
end

-- Puts a job that lies nowhere into a place. `due` is 0 where it is not delayed.
local function lay(id, wh, role, tg, pri, n, due)
  if wh == 'queued' and due <= now then return enter(id, role, tg, pri, n) end
  call('ZADD', P .. 'at:' .. role .. ':' .. STATUS[wh], '0', id)
  if wh == 'queued' then
    call('ZADD', P .. 'due:' .. role, due, id)
    call('HSET', P .. 'job:' .. id, 'sc', score(pri, n))
    fed(role, tg, id)
  elseif wh == 'waits' then
    call('SADD', P .. 'waits:' .. role, id)
  elseif wh == 'stale' or wh == 'open' or wh == 'marked' then
    call('SADD', P .. wh, id)
  end
end

-- Takes a job out of the place where it lies.
local function lift(id, wh, role, tg, own)
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

-- Those that waited for a job that has ended: whoever is told of them looks at each; should it die, recovery does.
local function waiting(id, n)
  local others = call('SMEMBERS', P .. 'after:' .. id)
  for _, other in ipairs(others) do call('ZADD', P .. 'todo', n, other) end
  if #others > 0 then call('DEL', P .. 'after:' .. id) end
  return others
end

-- Files of a job from ARGV[at]: their number, then name and content of each. Answers the next index.
local function keep(id, at)
  local count = tonumber(ARGV[at])
  local last = at + 2 * count
  for i = at + 1, last, 1000 do call('HSET', P .. 'files:' .. id, unpack(ARGV, i, math.min(i + 999, last))) end
  return at + 1 + 2 * count, count
end

-- Writes a new job down; the number of this change.
local function make(id, role, wh, tg, pri, sv, life, prompt, line)
  local n, key = tell(line), P .. 'job:' .. id
  call('HSET', key, 'life', life, 'prompt', prompt, 'role', role, 'wh', wh, 'v', n, 'sv', sv)
  if tg ~= '' or pri ~= '2' then call('HSET', key, 'tg', tg, 'pri', pri) end
  return n
end

-- A new job from ARGV[at]: id digest tok role tags priority due sv life prompt line, the jobs that it waits for, its
-- files. `agent`: it is claimed at once. Answers the next index, and whether one that it waits for has ended already.
local function create(at, agent, cl, corr)
  local id, role, tg, pri, due = ARGV[at], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], tonumber(ARGV[at + 6])
  local blocks = tonumber(ARGV[at + 11])
  local wh = agent and 'held' or (blocks > 0 and 'waits' or 'queued')
  local key = P .. 'job:' .. id
  local n = make(id, role, wh, tg, pri, ARGV[at + 7], ARGV[at + 8], ARGV[at + 9], ARGV[at + 10])
  if ARGV[at + 1] ~= '' then call('HSET', key, 'digest', ARGV[at + 1], 'tok', ARGV[at + 2]) end
  local late = false
  for i = at + 12, at + 11 + blocks do
    local state = call('HGET', P .. 'job:' .. ARGV[i], 'wh')
    if state and not FINAL[state] then call('SADD', P .. 'after:' .. ARGV[i], id) else late = true end
  end
  local next, count = keep(id, at + 12 + blocks)
  if count > 0 then call('HSET', key, 'fl', 1) end
  if agent then
    call('HSET', key, 'own', agent, 'att', 1, 'cl', cl)
    call('HSET', P .. 'held:' .. agent, id, corr)
  end
  lay(id, wh, role, tg, pri, n, due)
  if late and not agent then call('ZADD', P .. 'todo', n, id) end
  return next, late
end
