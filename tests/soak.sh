#!/usr/bin/env bash
# Random faults in random jobs under horarun, on one node, on virtual ones and on two hosts.
# Usage: tests/soak.sh --faults N | --elastic N [--seed S] [--build FOLDER]
#   --faults  number of jobs of each layout, each with one fault
#   --elastic losses in elastic trainings, and the time that each takes
#   --seed    repeats a run's random choices; a random one is printed
#   --build   a build folder (build/release), in which the program is brought up to date
# Exit code: 0 only where no job hung, every culprit was named right, elastic trainings have the bytes of those that
# lost nothing, and nothing was left behind.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

stop() {
  echo "tests/soak.sh: $*; see --help" >&2
  exit 2
}

faults='' elastic='' seed=$RANDOM build=build/release
while (($# > 0)); do
  case $1 in
    --faults) faults=${2:-} ;;
    --elastic) elastic=${2:-} ;;
    --seed) seed=${2:-} ;;
    --build) build=${2:-} ;;
    -h | --help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"; exit 0 ;;
    *) stop "unknown option ${1@Q}" ;;
  esac
  (($# > 1)) || stop "$1 needs a value"
  shift 2
done
[[ $faults$elastic =~ ^[1-9][0-9]*$ ]] || stop "--faults or --elastic needs a number"
[[ $seed =~ ^[0-9]+$ ]] || stop "--seed needs a number"
[[ -e $build/CMakeCache.txt ]] || stop "there is no build in ${build@Q}: cmake --preset release"

cmake --build "$build" --target faults_test cifar10 prepare_digits > "$build/soak.build.log" ||
  { cat "$build/soak.build.log"; exit 1; }

temporary=$(mktemp -d /tmp/hora-soak.XXXXXX)
trap 'rm -rf "$temporary"' EXIT
before=$(bash tests/leftovers.sh "$build" "$temporary")
echo "seed $seed"
status=0
job=("$build/tests/faults/faults_test" '--gtest_filter=*OfADrawnFaultIsNamed*')
[[ -z $elastic ]] || job=(bash tests/faults/elastic_soak.sh "$build" "$elastic" "$seed")
TMPDIR=$temporary OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 \
  TEST_FAULTS=$faults TEST_SEED=$seed "${job[@]}" || status=$?
left=$(bash tests/leftovers.sh "$build" "$temporary" | grep -vxF -e "$before" -e '' || true)
if [[ -n $left ]]; then
  echo "Left behind:"
  echo "$left"
  status=1
fi
exit "$status"
