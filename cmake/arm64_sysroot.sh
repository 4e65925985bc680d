#!/usr/bin/env bash
# Puts the arm64 packages of Debian 12 that hora needs into build/arm64-sysroot, once: what the preset
# arm64 compiles and links against, and QEMU's user mode runs. Nothing is installed on this machine
# and none of its packages changes: apt works in a folder of its own. (As packages of a second
# architecture they would replace this machine's libopenmpi-dev, and all that needs it.)
#
# Usage: cmake/arm64_sysroot.sh [--help]
#
# 110 MB are downloaded, from where this machine's apt takes its packages; 500 MB unpacked.
# Needs apt-get and dpkg-deb.
set -euo pipefail

# What cmake/debian-packages.txt has in the groups build and test of headers and libraries.
readonly packages=(libc6-dev libstdc++-12-dev libopenmpi-dev libspdlog-dev libflatbuffers-dev
  libexpected-dev nlohmann-json3-dev libcli11-dev libyaml-cpp-dev libsodium-dev libhwloc-dev
  libgtest-dev libgmock-dev)

stop() { echo "cmake/arm64_sysroot.sh: $*" >&2; exit 1; }

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"
  exit 0
fi
(($# == 0)) || stop "unknown argument $1"
root=$(cd "$(dirname "$(realpath "$0")")/.." && pwd)
readonly root folder=$root/build/arm64-sysroot

# The marker says which packages the folder holds: another list replaces it.
[[ $(cat "$folder/packages.txt" 2> /dev/null) != "${packages[*]}" ]] || exit 0
command -v apt-get > /dev/null || stop "no apt-get here: this needs Debian, or a container of it."

mkdir -p "$root/build"
rm -rf "$root"/build/arm64-sysroot.partial.*
partial=$(mktemp -d "$root/build/arm64-sysroot.partial.XXXXXX")
trap 'rm -rf "$partial"' EXIT
chmod 755 "$partial"
apt=$partial/apt
mkdir -p "$apt"/{state/lists/partial,cache/archives/partial}
: > "$apt/status"
options=(-q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
  -o "Dir::State=$apt/state" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
  -o Acquire::Languages=none -o Acquire::Retries=3)
echo "Downloading ${packages[*]} for arm64 into build/arm64-sysroot"
apt-get "${options[@]}" update > "$apt/log" 2>&1 &&
  apt-get "${options[@]}" -y --no-install-recommends --download-only install "${packages[@]}" \
    >> "$apt/log" 2>&1 || { cat "$apt/log" >&2; stop "apt-get failed; its messages stand above."; }
for archive in "$apt"/cache/archives/*.deb; do
  dpkg-deb -x "$archive" "$partial"
done
rm -rf "$apt"
echo "${packages[*]}" > "$partial/packages.txt"
rm -rf "$folder"
mv "$partial" "$folder"
trap - EXIT
