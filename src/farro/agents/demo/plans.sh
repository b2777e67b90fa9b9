#!/usr/bin/env bash
# `farro demo --plans`: plans of real commands, worked live, one worker killed in the middle. farro itself runs this
# script; it says how farro is called, and where the root shall be.
set -euo pipefail

read -r -a program <<<"$FARRO_DEMO_PROGRAM"
root="$FARRO_DEMO_PLACE"
farro() { "${program[@]}" "$@"; }
worker=

finish() {
  if [ -n "$worker" ]; then kill -9 "$worker" 2>/dev/null || true; fi
  if [ "${FARRO_DEMO_KEEP:-}" = 1 ]; then printf '\nEverything is still there to look at: %s\n' "$root"; fi
}
trap finish EXIT

if [ -t 1 ]; then bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'; else bold='' dim='' plain=''; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
show() { printf '%s$ %s%s\n' "$dim" "$*" "$plain"; }
run() { show "farro $*"; farro "$@"; }
tree() { show "find $1 -type f | sort"; find "$1" -type f | sort; }
# The worker's log is JSON; a person wants the short of it.
readable() { sed -nE 's/.*"timestamp": "[^T]*T([0-9:.]*)Z".*"job_id": "([^"]*)".*"attempt": ([0-9]+).*"from": "([^"]*)", "to": "([^"]*)".*/    \1  \2 (attempt \3): \4 → \5/p'; }
wait_for() { for _ in $(seq 300); do if compgen -G "$1" >/dev/null; then return; fi; sleep 0.1; done; echo "$1 did not come" >&2; exit 1; }

export FARRO_ROOT="$root"
cd "$root"  # so that what is shown can be typed as it stands, there
mkdir plans
cat >"plans/biggest.json" <<'PLAN'
{"id": "biggest-numbers", "plan_id": "biggest", "steps": [
  {"step_number": 1, "tool": "unix", "command": "seq", "args": ["1", "200000"]},
  {"step_number": 2, "tool": "unix", "command": "sort", "args": ["-rn"], "input_from_step": 1},
  {"step_number": 3, "tool": "unix", "command": "head", "args": ["-n", "3"], "input_from_step": 2}]}
PLAN
cat >"plans/halts.json" <<'PLAN'
{"id": "halts-at-the-second", "plan_id": "halts", "steps": [
  {"step_number": 1, "tool": "unix", "command": "echo", "args": ["this result is kept"]},
  {"step_number": 2, "tool": "unix", "command": "ls", "args": ["no-such-file"]},
  {"step_number": 3, "tool": "unix", "command": "echo", "args": ["never reached"]}]}
PLAN
cat >"plans/slow.json" <<'PLAN'
{"id": "survivor", "plan_id": "slow", "steps": [
  {"step_number": 1, "tool": "unix", "command": "sleep", "args": ["1.5"]},
  {"step_number": 2, "tool": "unix", "command": "echo", "args": ["I was killed, and here I am"]}]}
PLAN
for n in 1 2 3 4; do
  printf '{"id": "greeting-%d", "plan_id": "greetings", "steps": [{"step_number": 1, "tool": "unix", "command": "echo", "args": ["hello from job %d"]}]}\n' "$n" "$n"
done >"plans/greetings.ndjson"

say "1. A root is a folder. Nothing is started, nothing listens."
run init
say "2. Plans of real commands go into the queue of the role Runner."
run enqueue --plan "plans/biggest.json"
run enqueue --plan "plans/halts.json"
run enqueue --many "plans/greetings.ndjson"
say "3. A job is a folder, and the path is its state."
show "ls agents/Runner/incoming"
ls agents/Runner/incoming
say "4. A worker with two slots, until nothing is left."
show "farro worker --workers 2 --drain"
farro worker --workers 2 --drain | readable
run ls
say "5. A result, as a person finds it."
tree agents/Runner/completed/succeeded/biggest-numbers
run logs biggest-numbers --step 3
say "6. A failure halts the plan and keeps what was done before it."
run show halts-at-the-second | sed -n '1,4p;/^#/,$p'
say "7. Now the worker is killed with kill -9 in the middle of a job."
run enqueue --plan "plans/slow.json"
show "farro worker --workers 1 --name doomed &"
"${program[@]}" worker --workers 1 --name doomed >doomed.log &
worker=$!
wait_for "agents/Runner/in-progress/doomed.*/survivor/attempts/0001/steps/1/stdout"
show "kill -9 $worker"
kill -9 "$worker"
wait "$worker" 2>/dev/null || true
worker=
tree agents/Runner/in-progress
run ls --status in_progress
say "   Its lease is free: the watchdog takes the job, the manager queues it again, and it is worked."
run watchdog --once
run manager --once
show "farro worker --drain"
farro worker --drain | readable
run logs survivor --step 2
say "8. The history of that job."
run show survivor | sed -n '1,2p;/history/,/files/p' | sed '/files/d'
say "Nothing was lost, and one result was accepted. Next: README.md, docs/worked-example.md, farro demo --plans --keep."
