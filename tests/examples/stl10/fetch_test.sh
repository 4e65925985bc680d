#!/usr/bin/env bash
# fetch.sh with a curl that gives a small archive, and an md5sum that takes it or does not.
# Usage: fetch_test.sh FETCH
set -euo pipefail
fetch=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/fetch_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  cat output
  echo "FAILED: $*"
  exit 1
}

mkdir -p bin stl10_binary
for file in class_names.txt train_X.bin train_y.bin test_X.bin test_y.bin unlabeled_X.bin; do
  echo "$file" > "stl10_binary/$file"
done
tar -czf small.tar.gz stl10_binary
# shellcheck disable=SC2016  # for the fakes to expand
{
  printf '#!/bin/bash\n[[ -f %q ]] || exit 7\n' "$work/small.tar.gz"
  printf '[[ "$*" == *--connect-timeout*https://*stl10_binary.tar.gz ]] || exit 2\n'
  printf 'while [[ $1 != --output ]]; do shift; done\ncp %q "$2"\n' "$work/small.tar.gz"
} > bin/curl
# shellcheck disable=SC2016  # here, too
printf '#!/bin/bash\nread -r sum _\n((${#sum} == 32)) && [[ -e %q ]]\n' "$work/right" > bin/md5sum
chmod +x bin/*
fetch() {
  PATH=$work/bin:$PATH bash "$fetch" "$@" > output 2>&1
}
refuses() {
  local what=$1
  shift
  ! fetch "$@" || fail "accepted: $what"
  grep -qF -- "$what" output || fail "does not say '$what'"
  [[ -z $(find "a folder" -mindepth 1 2> /dev/null) ]] || fail "left something behind: $what"
}

refuses "expected one argument"
refuses "expected one argument" --help
refuses "does not have the checksum" "a folder"
mv small.tar.gz away
refuses "the download failed" "a folder"
mv away small.tar.gz
touch right
fetch "a folder" || fail "the download"
diff <(ls "a folder/stl10_binary") <(printf '%s\n' class_names.txt test_X.bin test_y.bin \
  train_X.bin train_y.bin) || fail "other files"
[[ $(ls "a folder") == stl10_binary ]] || fail "left something behind"
rm small.tar.gz
fetch "a folder" || fail "downloaded again"
grep -q "there already" output || fail "does not say that it is there"
echo "all as expected"
