# shellcheck shell=bash
# Functions for the scripts that fetch and build engines for the tests. They source this file from the clone's folder.
#
# Each build has a folder of its own in the cache, named for what it was made from: a changed script makes a new folder
# and disturbs no engine that runs from an old one. FARRO_CACHE names a cache that several clones share; without it the
# cache is .build/cache. A script prints its progress on stderr and the folder on stdout.

cache=$(mkdir -p "${FARRO_CACHE:-.build/cache}" && cd "${FARRO_CACHE:-.build/cache}" && pwd -P)

progress() { echo "$*" >&2; }

# build_once NAME MADE_FROM FUNCTION: print the folder of this build; if it is new, FUNCTION fills it first.
# FUNCTION runs in the empty folder. MADE_FROM is text: everything that the result depends on.
build_once() {
  local name=$1 made_from=$2 fill=$3 folder
  folder=$cache/$name-$({ cat "scripts/cached.sh"; echo "$made_from"; uname -m; } | sha256sum | cut -c1-16)
  if [ ! -e "$folder/.ready" ]; then
    # Several suites, and several processes of one suite, may ask at once: one builds, the others wait for it.
    exec 9>"$folder.lock"
    flock 9
    if [ ! -e "$folder/.ready" ]; then
      rm -rf "$folder"
      mkdir "$folder"
      # Not `if (…)` nor `(…) ||`: bash ignores set -e in a condition, and a failure would not end the subshell.
      set +e
      (set -e; cd "$folder"; "$fill") >&2
      local code=$?
      set -e
      [ "$code" -eq 0 ] || { progress "$name was not built; the reason is above."; exit 1; }
      touch "$folder/.ready"
    fi
    flock -u 9
  fi
  echo "$folder"
}

# logged LOG COMMAND…: run a command whose output matters only when it fails.
logged() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 </dev/null && return
  tail -n 20 "$log" >&2
  progress "failed: $*; the end of its output is above, all of it is in $log"
  return 1
}

# unpack_packages FOLDER PACKAGE…: download Debian packages with what they need beyond the installed ones, and unpack
# them into FOLDER. Nothing is installed, so no service of theirs starts.
unpack_packages() {
  local folder=$1 archives
  shift
  command -v apt-get >/dev/null || { progress "There is no apt-get here, which downloads: $*"; return 1; }
  progress "Downloading Debian packages: $*"
  archives=$(mktemp -d)
  chmod 755 "$archives" # apt downloads as a user of its own
  mkdir "$archives/partial"
  download() {
    apt-get -qq -y --no-install-recommends --download-only --reinstall \
      -o Dir::Cache::archives="$archives" -o Debug::NoLocking=true -o Acquire::Retries=1 install "$@"
  }
  # The lists of a fresh machine are empty or old: refreshed only when the first try shows it.
  if ! download "$@" >"$archives/log" 2>&1 </dev/null; then
    logged "$archives/log" apt-get -qq -o DPkg::Lock::Timeout=120 update || return 1
    logged "$archives/log" download "$@" || return 1
  fi
  mkdir -p "$folder"
  for package in "$archives"/*.deb; do dpkg-deb --extract "$package" "$folder" || return 1; done
  for top in bin sbin lib lib64; do # links to usr/… once installed
    [ -d "$folder/$top" ] || continue
    mkdir -p "$folder/usr/$top"
    cp -a --link "$folder/$top/." "$folder/usr/$top/"
    rm -rf "${folder:?}/$top"
  done
  rm -rf "$archives"
}
