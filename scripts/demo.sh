#!/usr/bin/env bash
# The demo until the real one exists: enqueue plans of real commands, work them live, show folders and results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

farro="$PWD/.venv/bin/farro"
root=$(mktemp -d "${TMPDIR:-/tmp}/farro-demo.XXXXXX")

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '\033[2m$ farro %s\033[0m\n' "$*"; "$farro" "$@" --root "$root"; }

mkdir "$root/plans"
cat >"$root/plans/sort.json" <<'PLAN'
{"id": "biggest-numbers", "plan_id": "biggest-numbers", "steps": [
  {"step_number": 1, "command": "seq", "args": ["1", "200000"]},
  {"step_number": 2, "command": "sort", "args": ["-rn"], "input_from_step": 1},
  {"step_number": 3, "command": "head", "args": ["-n", "3"], "input_from_step": 2}]}
PLAN
cat >"$root/plans/halt.json" <<'PLAN'
{"id": "halts-at-the-second", "plan_id": "halts-at-the-second", "steps": [
  {"step_number": 1, "command": "echo", "args": ["this result is kept"]},
  {"step_number": 2, "command": "ls", "args": ["no-such-file"]},
  {"step_number": 3, "command": "echo", "args": ["never reached"]}]}
PLAN
for n in 1 2 3 4; do
  printf '{"id": "greeting-%d", "plan_id": "greetings", "steps": [{"step_number": 1, "command": "echo", "args": ["hello from job %d"]}]}\n' "$n" "$n"
done >"$root/plans/greetings.ndjson"

say "A root is a folder: $root"
run init
say "Six plans of real commands go into the queue of the role Runner"
run enqueue --plan "$root/plans/sort.json"
run enqueue --plan "$root/plans/halt.json"
run enqueue --many "$root/plans/greetings.ndjson"
say "A job is a folder, and the path is its state"
ls "$root/agents/Runner/incoming"
say "Two workers, until nothing is left"
run worker --role Runner --workers 2 --drain
say "What became of them"
run ls
say "A result, as a person finds it"
(cd "$root/agents/Runner/completed/succeeded/biggest-numbers" && find . -type f | sort && cat result.md)
say "A failure keeps what was done before it"
run show halts-at-the-second
say "Everything is still there to look at: $root"
