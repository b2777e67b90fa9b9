#!/usr/bin/env bash
# Installs the coding agents that the tests run, in pinned versions: scripts/agents.sh [more]
#
# claude, codex and gemini go to .build/agents; with `more` the agents of the long form go to .build/agents-more.
# Their programs are in node_modules/.bin, aider is in aider/bin. A stamp names what was installed: the hash of this
# file, the folder and the version of Node; any other of these, and they are installed anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  @anthropic-ai/claude-code@2.1.327
  @google/gemini-cli@0.61.0
  @openai/codex@0.169.0
)
set_up=(@anthropic-ai/claude-code) # needs its install script; those of the others only compile what they do without
folder=.build/agents

case "${1:-}" in
  "") ;;
  more)
    packages=(
      "@aaif/goose-binary-linux-$(node -p process.arch)@1.52.0"
      @agentclientprotocol/claude-agent-acp@0.100.0
      @agentclientprotocol/codex-acp@2.6.0
      opencode-ai@1.18.33
    )
    set_up=(opencode-ai)
    aider=aider-chat==0.86.2
    folder=.build/agents-more
    ;;
  *) echo "usage: scripts/agents.sh [more]" >&2; exit 2 ;;
esac

for program in node npm; do
  command -v "$program" >/dev/null && continue
  echo "$program is not installed: apt-get install nodejs npm, or Node 20 or newer from elsewhere." >&2
  exit 1
done
if [ "$(node -p 'process.versions.node.split(".")[0]')" -lt 20 ]; then
  echo "The coding agents need Node 20 or newer; this is $(node --version)." >&2
  exit 1
fi

stamp=$folder/.ready-$({ cat scripts/agents.sh; pwd -P; node --version; } | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0

# Several suites and several processes of one suite may ask at once: one installs, the others wait for it.
mkdir -p .build
exec 9>"$folder.lock"
flock 9
[ -e "$stamp" ] && exit 0

echo "Installing ${packages[*]} ${aider:-}"
rm -rf "$folder"
mkdir -p "$folder"
quietly() { # an install script that cannot run says so only in the output that is hidden here
  local log=$folder/install.log
  "$@" >>"$log" 2>&1 </dev/null && return
  tail -n 20 "$log" >&2
  echo "$* failed; the end of its output is above. Is a package registry within reach?" >&2
  exit 1
}
quietly npm install --prefix "$folder" --no-package-lock --no-audit --no-fund --ignore-scripts "${packages[@]}"
quietly npm rebuild --prefix "$folder" "${set_up[@]}"
if [ -n "${aider:-}" ]; then
  quietly .venv/bin/python -m venv "$folder/aider"
  quietly "$folder/aider/bin/python" -m pip install --no-input --disable-pip-version-check "$aider"
fi
touch "$stamp"
