#!/usr/bin/env bash
# The smoke test of SPEC-1 D: doctor, a manager and a worker, one job, its end within five minutes; then all of it ends.
#
#   scripts/smoke.sh              quiet but for a line a step
#   FARRO=…  SMOKE_LOGS=DIR       another program; where the logs are put when something fails (.build/smoke)
#
# It needs no network: the role is answered from a file. Exit 0: the job completed. Anything else: why, on stderr.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

farro="${FARRO:-$PWD/.venv/bin/farro}"
kept="${SMOKE_LOGS:-$PWD/.build/smoke}"
root=$(mktemp -d "${TMPDIR:-/tmp}/farro-smoke.XXXXXX")
export FARRO_ROOT="$root"
pids=()

finish() {
  code=$?
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  if [ "$code" -ne 0 ]; then
    rm -rf "$kept"
    mkdir -p "$kept"
    cp -R "$root/logs/." "$kept/" 2>/dev/null || true
    "$farro" ls --json >"$kept/jobs.json" 2>/dev/null || true
    "$farro" history smoke >"$kept/history.txt" 2>/dev/null || true
    echo "smoke: failed; the logs are in $kept" >&2
  fi
  rm -rf "$root"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

step() { printf 'smoke: %s\n' "$*"; }

step "a root, and a role that is answered from a file"
"$farro" init >/dev/null
cat >"$root/answers.json" <<'END'
{"answers": [{"role": "SeniorEngineer", "answer": {"summary": "Nothing had to be changed."}}]}
END
cat >"$root/agents-config.json" <<'END'
{"version": "1.0.0",
 "providers": {"file": {"kind": "scripted", "file": "answers.json"}},
 "security": {"max_job_bytes": 26214400, "payload_allowlist": [".md", ".txt", ".json"]}}
END
cat >"$root/prompt.json" <<'END'
{"role": "SeniorEngineer", "rubric": "See that it works.", "allowed_paths": ["src/"], "success": "It works.",
 "routing": {"mode": "manager"}}
END
mkdir "$root/src"

if "$farro" doctor --help >/dev/null 2>&1; then
  step "doctor"
  "$farro" doctor >"$root/logs/doctor.txt" || { cat "$root/logs/doctor.txt" >&2; exit 1; }
fi

step "schemas"
for name in prompt agents-config; do
  test -f "$root/schemas/$name.schema.json" || { echo "smoke: no schemas/$name.schema.json" >&2; exit 1; }
done

step "a manager and a worker"
"$farro" manager >"$root/logs/manager.log" 2>&1 &
pids+=($!)
"$farro" worker --role SeniorEngineer --workers 1 >"$root/logs/worker.log" 2>&1 &
pids+=($!)

step "one job"
"$farro" enqueue --prompt-json "$root/prompt.json" --id smoke >/dev/null
"$farro" wait smoke --timeout 5m >/dev/null || { "$farro" explain smoke >&2 || true; exit 1; }

test -d "$root/agents/Manager/completed/succeeded/smoke" || {
  echo "smoke: the job has succeeded, but is not in completed/" >&2
  exit 1
}
"$farro" stats --alerts >/dev/null || { "$farro" stats --alerts >&2; exit 1; }
step "it completed"
