#!/usr/bin/env bash
# The check must see a script with a mistake, however it is recognised as one, and an empty folder;
# what is no script, and what was built, it leaves alone. Where shellcheck is missing it says so.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v shellcheck > /dev/null || { CI='' bash "$here/shellcheck.sh" "$work"; exit; }

readonly wrong='for word in $(ls *.txt); do rm $undefined; done'

fresh_tree() {
  rm -rf "${work:?}/tree"
  mkdir -p "$work"/tree/{build,.ci,.git,tests/build}
  printf '#!/usr/bin/env bash\necho right\n' | tee "$work/tree/a.sh" > "$work/tree/.ci/run"
  printf '%s\n' "$wrong" | tee "$work/tree/notes.md" "$work/tree/build/b.sh" > "$work/tree/.git/c.sh"
  printf '#!/usr/bin/env python3\n%s\n' "$wrong" > "$work/tree/program"
}

fresh_tree
bash "$here/shellcheck.sh" "$work/tree"

must_find() {
  local file=$1 first=$2
  fresh_tree
  printf '%s\n%s\n' "$first" "$wrong" > "$work/tree/$file"
  if bash "$here/shellcheck.sh" "$work/tree"; then
    echo "not found: $file, which begins with $first"
    exit 1
  fi
}

must_find a.sh '#!/usr/bin/env bash'
must_find b.sh '# shellcheck shell=bash'
must_find b.sh '# Of no known shell.'
must_find program '#!/bin/sh'
must_find program '#!/bin/bash -e'
must_find .ci/run '#!/usr/bin/env bash'
must_find tests/build/b.sh '#!/usr/bin/env bash'

rm -rf "${work:?}/tree"
mkdir "$work/tree"
if bash "$here/shellcheck.sh" "$work/tree"; then
  echo "an empty folder passes"
  exit 1
fi

# Without the command: skipped by hand, a failure in CI.
fresh_tree
for ci in '' 1; do
  code=0
  CI=$ci PATH=$work "$BASH" "$here/shellcheck.sh" "$work/tree" || code=$?
  expected=$([[ -z $ci ]] && echo 77 || echo 1)
  ((code == expected)) || { echo "without shellcheck, CI=$ci: exit code $code"; exit 1; }
done
