#!/usr/bin/env bash
# Makes .venv ready and leaves it alone when it is: scripts/venv.sh base|dev
#
# A stamp in .venv names what was installed: the hash of pyproject.toml, the folder (an editable install points
# into it) and the interpreter. Any other of these, and pip runs again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

want=${1:-}
case "$want" in
  base) target="." ;;
  dev) target=".[dev]" ;;
  *) echo "usage: scripts/venv.sh base|dev" >&2; exit 2 ;;
esac

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

minor_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# Each candidate is run, not only looked up: a version manager's shim may exist for an interpreter that does not.
find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    new_enough "$PYTHON" && echo "$PYTHON" && return
    echo "PYTHON=$PYTHON is not a Python 3.11 or newer." >&2
    return 1
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python; do
    new_enough "$candidate" && echo "$candidate" && return
  done
  echo "farro needs Python 3.11 or newer, and none was found as python3, python3.13, python3.12 or python3.11." >&2
  echo "Debian 12+, Ubuntu 24.04+: apt-get install python3 python3-venv. Elsewhere: make $want PYTHON=/path/to/python3" >&2
  return 1
}

key() { { sha256sum <pyproject.toml; pwd -P; .venv/bin/python -VV; } | sha256sum | cut -c1-16; }

# An environment whose making was interrupted has an interpreter and no pip.
is_usable() {
  new_enough .venv/bin/python && .venv/bin/python -c 'import pip' 2>/dev/null || return 1
  [ -z "${PYTHON:-}" ] || [ "$(minor_of .venv/bin/python)" = "$(minor_of "$PYTHON")" ]
}

is_ready() {
  local now
  is_usable || return 1
  now=$(key)
  [ -e ".venv/.farro-dev-$now" ] || [ -e ".venv/.farro-$want-$now" ]
}

if [ -n "${PYTHON:-}" ]; then find_python >/dev/null; fi
is_ready && exit 0

# Two makes at once (a demo beside a test) must not both run pip in the same folder.
mkdir -p .build
if command -v flock >/dev/null; then
  exec 9>.build/venv.lock
  flock 9
  is_ready && exit 0
fi

if ! is_usable; then
  python=$(find_python)
  echo "Making .venv with $("$python" --version)"
  # Debian splits ensurepip off into a package of its own: without it the first try fails.
  if ! "$python" -m venv --clear .venv >/dev/null 2>&1; then
    scripts/packages.sh "python$(minor_of "$python")-venv"
    "$python" -m venv --clear .venv
  fi
fi

echo "Installing farro ($want) into .venv"
if ! .venv/bin/python -m pip install -qq --no-input --disable-pip-version-check --editable "$target" </dev/null; then
  echo "pip could not install '$target' into .venv; its message is above. Is a package index within reach?" >&2
  exit 1
fi
rm -f .venv/.farro-"$want"-*
touch ".venv/.farro-$want-$(key)"
