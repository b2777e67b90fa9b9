#!/usr/bin/env bash
# Fetches dockerd and a base image for the tests, or podman: scripts/docker.sh [podman]
#
# The programs are unpacked from Debian's packages into the cache (cached.sh), and image.tar beside them is a root
# file system with busybox and the Python of .venv: no registry is needed. Prints the folder. tests/docker_rig.py
# starts the daemons.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/cached.sh

case "${1:-}" in
  "") name=docker packages=(docker.io containerd runc tini iptables) ;;
  podman) name=podman packages=(podman conmon runc netavark aardvark-dns catatonit tini iptables) ;;
  *) echo "usage: scripts/docker.sh [podman]" >&2; exit 2 ;;
esac
python=$PWD/.venv/bin/python
image_script=$PWD/scripts/image.py

fetch_engine() {
  unpack_packages . "${packages[@]}" busybox-static
  # Debian chooses between the two by a link that the installation of the package makes.
  ln -sf iptables-nft usr/sbin/iptables
  ln -sf ip6tables-nft usr/sbin/ip6tables
  progress "Making an image with busybox and $("$python" --version)"
  "$python" "$image_script" --busybox usr/bin/busybox image.tar
}

build_once "$name" "$(cat scripts/docker.sh "$image_script"; "$python" -VV)" fetch_engine
