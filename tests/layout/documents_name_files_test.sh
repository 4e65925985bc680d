#!/usr/bin/env bash
# documents_name_files.sh must see a name of nothing, in each way of writing, and a tree without names.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/core/engine" "$work/ops/cuda" "$work/ops/nccl"
touch "$work/core/engine/progress.h" "$work/ops/cuda/stream.h" "$work/ops/nccl/launches.cpp"

check() { echo "$1" > "$work/ops/nccl/README.md" && bash "$here/documents_name_files.sh" "$work"; }
must_fail() { if check "$1"; then echo "did not fail: $1"; exit 1; fi; }

check '`progress.h`, `engine/progress.h`, `core/engine/`, `cuda/stream`, `launches.cpp` (`nccl/launches`)'
check '[the engine](../../core/engine/progress.h#part), [hora](https://example.org/a.h) and `core`'
check '`progress.h`: `hora/cached`, `build/a.h`, `/usr/a.h`, `<name>.cpp`, `core/NAME`, `FILE.sh`, `core/*.h`'
check $'```\ncore/engine/progress.h   # not core/engine/gone.h\nhorarun train.cpp\n```'
must_fail '`gone.h`'
must_fail '`progress.h`, `engine/gone.h`'
must_fail '`core/gone`'
must_fail '`cuda/gone`'
must_fail '`cuda/progress.h`'
must_fail '[the engine](core/engine/progress.h)'
must_fail $'```\nbash ./core/gone.sh\n```'
must_fail 'nothing'
rm "$work/ops/nccl/README.md"
if bash "$here/documents_name_files.sh" "$work"; then echo "did not fail without documents"; exit 1; fi
