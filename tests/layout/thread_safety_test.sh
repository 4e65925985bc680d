#!/usr/bin/env bash
# thread_safety.sh finds an access without its lock, and a function called without one.
# Usage: thread_safety_test.sh SOURCE_FOLDER
set -uo pipefail
source_folder=$(realpath "$1")
check=$(dirname "$(realpath "$0")")/thread_safety.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/core" "$folder/build/core"
echo '#include "core/counter.cpp"' > "$folder/build/core/together_0.cpp"
failures=0

# expect NAME EXIT_CODE BODY [SOURCE]: of a member function of a class with a guarded member
expect() {
  local name=$1 expected=$2 body=$3 source=${4:-core/counter.cpp} code
  cat > "$folder/core/counter.cpp" << SOURCE
#include "core/base/sync.h"
namespace hora::internal {
class Counter {
 public:
  void run() { $body }
 private:
  void add() HORA_REQUIRES(lock_) { ++count_; }
  int shared_sum() const HORA_REQUIRES_SHARED(list_lock_) { return sum_; }
  Mutex lock_;
  SharedMutex list_lock_;
  int count_ HORA_GUARDED_BY(lock_) = 0;
  int sum_ HORA_GUARDED_BY(list_lock_) = 0;
};
void use(Counter& counter) { counter.run(); }
}  // namespace hora::internal
SOURCE
  cat > "$folder/build/compile_commands.json" << JSON
[
{
  "directory": "$folder/build",
  "command": "/usr/bin/ccache /usr/bin/c++ -I$source_folder -I$folder -O3 -fipa-pta -std=c++20 -c $folder/$source",
  "file": "$folder/$source"
}
]
JSON
  bash "$check" "$folder" "$folder/build" > "$folder/output" 2>&1
  code=$?
  ((code != 77)) || { echo "no clang++"; exit 77; }
  if ((code == expected)); then
    echo "$name: ok"
  else
    echo "$name: exit code $code, expected $expected"
    cat "$folder/output"
    failures=$((failures + 1))
  fi
}

expect "with the lock" 0 'const LockGuard lock(lock_); ++count_; add();'
expect "without it" 1 '++count_;'
expect "in sources that are compiled together" 1 '++count_;' build/core/together_0.cpp
expect "after it" 1 '{ const LockGuard lock(lock_); } ++count_;'
expect "a function that wants it" 1 'add();'
expect "a lock that is not given back" 1 'lock_.lock();'
expect "a lock taken twice" 1 'const LockGuard lock(lock_); const LockGuard again(lock_);'
expect "reading beside readers" 0 'const SharedGuard lock(list_lock_); (void)shared_sum();'
expect "writing beside readers" 1 'const SharedGuard lock(list_lock_); ++sum_;'
((failures == 0))
