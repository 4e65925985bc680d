#!/usr/bin/env bash
# Downloads STL-10's binary version (2.6 GB) from its publisher, checks the checksum that torchvision
# knows, and unpacks what is trained and validated on (0.4 GB), without the unlabelled images.
# Usage: fetch.sh FOLDER    (FOLDER/stl10_binary appears whole or not at all)
set -euo pipefail
publisher=https://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz
md5=91f7769df0f17e558f3565bffb0c7dfb
files=(class_names.txt train_X.bin train_y.bin test_X.bin test_y.bin)

fail() {
  echo "fetch.sh: $*" >&2
  exit 1
}

[[ $# == 1 && $1 != -* ]] || fail "expected one argument, the folder"
folder=$1
if [[ -e $folder/stl10_binary ]]; then
  echo "$folder/stl10_binary is there already"
  exit 0
fi
mkdir -p "$folder"
work=$(mktemp -d "$folder/download.XXXXXX")
trap 'rm -rf "$work"' EXIT

echo "Downloading STL-10 from $publisher"
# Gives up after 5 s without a connection, and where less than 100 kB/s came for 10 s.
curl --fail --silent --show-error --location --connect-timeout 5 --speed-limit 100000 \
  --speed-time 10 --output "$work/archive" "$publisher" ||
  fail "the download failed; stl10_binary.tar.gz from elsewhere can be unpacked in $folder"
echo "$md5  $work/archive" | md5sum --check --status ||
  fail "what came does not have the checksum $md5; it is not used"
tar -xzf "$work/archive" -C "$work" --no-same-owner "${files[@]/#/stl10_binary/}" ||
  fail "the archive cannot be unpacked"
mv "$work/stl10_binary" "$folder/stl10_binary"
echo "STL-10 lies in $folder/stl10_binary"
