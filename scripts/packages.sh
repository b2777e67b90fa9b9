#!/usr/bin/env bash
# Installs the Debian packages whose commands are missing; with names as arguments, those packages.
#
# Never asks anything. When it cannot install it says so loudly and ends well: the tests that need a missing
# part then skip, and fail with CI=true.
set -uo pipefail

# The file system tools live in sbin, which an ordinary user's PATH leaves out.
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

# command:package
needed=(
  git:git
  curl:curl
  strace:strace
  mkfs.ext4:e2fsprogs
  mkfs.xfs:xfsprogs
  mkfs.btrfs:btrfs-progs
  fusermount3:fuse3
  losetup:mount
  unshare:util-linux
  bwrap:bubblewrap
  redis-server:redis-server
  redis-benchmark:redis-tools
  ip:iproute2
  rabbitmqctl:rabbitmq-server
  chromium:chromium
  npm:npm
)

missing=()
if [ $# -gt 0 ]; then
  missing=("$@")
else
  for pair in "${needed[@]}"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
fi
[ ${#missing[@]} -eq 0 ] && exit 0

give_up() {
  {
    echo "======================================================================"
    echo "NOTE: missing Debian packages, not installed: ${missing[*]}"
    echo "      Why: $1"
    if [ "${CI:-}" = true ]; then
      echo "      CI=true: the tests that need them FAIL."
    else
      echo "      The tests that need them are SKIPPED."
    fi
    echo "      By hand: apt-get install ${missing[*]}   (as root)"
    echo "======================================================================"
  } >&2
  exit 0
}

command -v apt-get >/dev/null || give_up "there is no apt-get here"

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || give_up "not root, and there is no sudo"
  sudo -n true 2>/dev/null || give_up "not root, and sudo asks for a password"
  as_root=(sudo -n)
fi

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
    apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=1 -o Acquire::http::Timeout=30 "$@" </dev/null
}

# Adds what is missing and leaves what is installed alone, unless a new package depends on a newer version of it.
install() { apt install -y --no-install-recommends --no-upgrade --no-remove "${missing[@]}"; }

echo "Installing Debian packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The lists of a fresh machine are empty or old: refreshed only when the first try shows it.
if install >"$log" 2>&1 || { apt update && install; } >"$log" 2>&1; then
  exit 0
fi
tail -n 20 "$log" >&2
give_up "apt-get failed; the end of its output is above"
