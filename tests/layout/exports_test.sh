#!/usr/bin/env bash
# exports.sh accepts a library that exports what its headers declare, and names each thing that is
# missing or too many.
# Usage: exports_test.sh NM COMPILER
set -euo pipefail
nm=$1 compiler=$2
check=$(cd "$(dirname "$0")" && pwd)/exports.sh
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

mkdir -p "$root/core/include/hora" "$root/core/engine"
cat > "$root/core/include/hora/public.h" <<'END'
#define HORA_EXPORT [[gnu::visibility("default")]]
namespace HORA_EXPORT hora {
class Thing {
 public:
  int value() const;
};
int declared(int value);
template <class T>
T in_header(T value) { return value; }
}
END
cat > "$root/core/engine/marked.h" <<'END'
namespace hora::internal {
HORA_EXPORT int marked();
int unmarked();
}
END

# try NAME EXPECTED_TEXT SOURCE: empty text: accepted.
failures=0
try() {
  local name=$1 expected=$2 output status=0
  printf '#include "core/include/hora/public.h"\n#include "core/engine/marked.h"\n%s\n' "$3" \
    > "$root/$name.cpp"
  "$compiler" -std=c++20 -fPIC -shared -fvisibility=hidden -I"$root" "$root/$name.cpp" \
    -o "$root/$name.so"
  output=$(bash "$check" "$nm" "$root/$name.so" "$root" core/include 2>&1) || status=$?
  if [[ -z $expected && $status != 0 ]] || [[ -n $expected && $status == 0 ]] ||
     [[ $output != *"$expected"* ]]; then
    printf '%s: status %s, expected "%s" in:\n%s\n' "$name" "$status" "$expected" "$output"
    failures=$((failures + 1))
  fi
}

good='int hora::Thing::value() const { return 1; }
int hora::declared(int value) { return value; }
int hora::internal::marked() { return 2; }
int hora::internal::unmarked() { return 3; }'
try good "" "$good"
try missing "not exported: declared" "${good/int hora::declared/static int declared}"
try undeclared "no public header declares it: hora::surplus" \
  "$good namespace hora { HORA_EXPORT int surplus() { return 1; } }"
try internal "not marked with HORA_EXPORT: hora::internal::other" \
  "$good namespace hora::internal { [[gnu::visibility(\"default\")]] int other() { return 1; } }"
try foreign "outside of namespace hora: stray" \
  "$good [[gnu::visibility(\"default\")]] int stray() { return 1; }"
echo "$failures failures"
((failures == 0))
