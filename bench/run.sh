#!/usr/bin/env bash
# Builds the benchmarks, runs all of them beside their peers, and writes JSON, Markdown and plots into
# bench/results/run, and the README's table of performance from them. About 20 minutes on a quiet
# machine; hora and its peers take turns in one process, so that each ratio is of one run.
#
# Usage: bench/run.sh [--quick] [--only PART[,PART...]] [--continue] [--out FOLDER] [--build FOLDER]
#                     [--no-build] [--no-readme] [--list]
#   --quick       about 3 minutes: fewer sizes, blocks and networks
#   --only PARTS  these parts alone (--list has them); the other parts' files stay as they are
#   --continue    leaves out the parts whose files are there already
#   --out FOLDER  for the results (bench/results/run by default)
#   --build FOLDER  of the release build (build/release by default)
#   --no-build    takes the programs that are there
#   --no-readme   leaves README.md as it is
#   --list        prints the parts
# Exit code: 0 only where every part ran and all results were right. A part whose peer is not on this
# machine says so, and is no failure.
# shellcheck disable=SC2317  # the parts' functions are called by their names
set -uo pipefail
cd "$(dirname "$(realpath "$0")")/.." || exit

readonly all_parts=(allreduce allreduce_as_installed allreduce_nodes types many_ranks collectives
  collectives_nodes negotiation negotiation_nodes record resnet18 resnet18_cifar resnet50 one_layer
  tiny_layers ranks two_hosts horovod)
quick='' parts=("${all_parts[@]}") go_on='' folder=bench/results/run build=build/release make=yes readme=yes
while (($# > 0)); do
  case $1 in
    --quick) quick=yes ;;
    --only) IFS=, read -r -a parts <<< "${2:?--only needs names of parts; see --list}"; shift ;;
    --continue) go_on=yes ;;
    --out) folder=${2:?--out needs a folder}; shift ;;
    --build) build=${2:?--build needs a folder}; shift ;;
    --no-build) make='' ;;
    --no-readme) readme='' ;;
    --list) printf '%s\n' "${all_parts[@]}"; exit ;;
    -h | --help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"; exit ;;
    *) echo "bench/run.sh: unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
for part in "${parts[@]}"; do
  [[ " ${all_parts[*]} " == *" $part "* ]] ||
    { echo "bench/run.sh: there is no part $part; --list has them" >&2; exit 2; }
done
# The figures of a quick run are not for the README.
[[ -z $quick ]] || readme=''

if [[ -n $make ]]; then
  [[ -e $build/CMakeCache.txt ]] || cmake --preset release -B "$build" || exit
  targets=(allreduce_perf collectives_perf negotiation)
  ! grep -q '^HORA_TORCH:BOOL=ON' "$build/CMakeCache.txt" || targets+=(training_step)
  cmake --build "$build" --target "${targets[@]}" || exit
fi

logs=$build/bench-logs
mkdir -p "$folder" "$logs"
python3 -B bench/report/machine.py "$folder/machine.json" "$build" || exit

cores=$(nproc)
mpirun=$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' "$build/CMakeCache.txt")
mpirun=${mpirun:-mpirun}
open_mpi=$("$mpirun" --version 2> /dev/null | grep -c 'Open MPI\|OpenRTE\|PRRTE')

# ranks N FILE PROGRAM ARGUMENT...: its results in FILE.json, once it has ended well.
ranks() {
  local count=$1 file=$2 program=$3 options=()
  shift 3
  if ((open_mpi > 0)); then
    options=(--bind-to none)
    ((EUID != 0)) || options+=(--allow-run-as-root)
    ((count <= cores)) || options+=(--oversubscribe --mca mpi_yield_when_idle 1)
  fi
  "$mpirun" "${options[@]}" -np "$count" "$build/bench/$program" "$@" \
    --benchmark_out="$logs/$file.json" && mv "$logs/$file.json" "$folder/$file.json"
}

# Seconds of each benchmark, sizes and blocks: whole, or quick.
if [[ -z $quick ]]; then
  sizes=(--max-bytes 256MiB --factor 4 --benchmark_min_time=0.2)
  few_sizes=(--min-bytes 64KiB --max-bytes 256MiB --factor 16 --benchmark_min_time=0.1
    --benchmark_filter=allreduce/)
  collective_sizes=(--min-bytes 4 --max-bytes 256MiB --factor 8 --benchmark_min_time=0.1)
  waits=(--benchmark_min_time=1)
  blocks=12 runs=5
else
  sizes=(--max-bytes 16MiB --factor 64 --benchmark_min_time=0.03 --blocks 4)
  few_sizes=(--min-bytes 64KiB --max-bytes 4MiB --factor 64 --benchmark_min_time=0.02 --blocks 4
    --benchmark_filter=allreduce/)
  collective_sizes=(--min-bytes 64KiB --max-bytes 4MiB --factor 64 --benchmark_min_time=0.02 --blocks 4)
  waits=(--benchmark_min_time=0.1 --idle-seconds 1 --wait-seconds 1)
  blocks=6 runs=1
fi

# step FILE NETWORK BLOCKS STEPS RANKS ARGUMENT...
step() {
  local file=$1 network=$2 its_blocks=$3 steps=$4 count=$5
  shift 5
  [[ -x $build/bench/training_step/training_step ]] ||
    { echo "left out: this build has no LibTorch"; return 77; }
  ranks "$count" "$file" training_step/training_step --network "$network" \
    --blocks "$its_blocks" --steps "$steps" "$@"
}

slow_step() {
  [[ -z $quick ]] || { echo "left out: not in a quick run"; return 77; }
  step "training_$1" "$1" 4 1 2 \
    --contenders plain,hora_copies,hora_arena,hora_one_pass,c10d_gloo,mpi_blocking
}

run_allreduce() { ranks 2 allreduce allreduce_perf "${sizes[@]}"; }
run_allreduce_as_installed() {
  HORA_MALLOC_TUNING=off ranks 2 allreduce_as_installed allreduce_perf "${few_sizes[@]}"
}
run_allreduce_nodes() {
  HORA_RANKS_PER_NODE=1 ranks 2 allreduce_nodes allreduce_perf "${few_sizes[@]}"
}
run_types() {
  local type types=(double half bfloat16 int8 int32 int64)
  [[ -z $quick ]] || types=(half)
  for type in "${types[@]}"; do
    ranks 2 "allreduce_type_$type" allreduce_perf "${few_sizes[@]}" --type "$type" || return
  done
}
run_many_ranks() {
  local count
  [[ -z $quick ]] || { echo "left out: not in a quick run"; return 77; }
  for count in 4 8; do
    ranks "$count" "allreduce_ranks_$count" allreduce_perf --min-bytes 4 --max-bytes 16MiB --factor 64 \
      --benchmark_min_time=0.05 --blocks 4 \
      --benchmark_filter='allreduce/(hora|hora_bucket|mpi|gloo)/' || return
  done
}
run_collectives() { ranks 2 collectives collectives_perf "${collective_sizes[@]}"; }
run_collectives_nodes() {
  HORA_RANKS_PER_NODE=1 ranks 2 collectives_nodes collectives_perf "${collective_sizes[@]}"
}
run_negotiation() {
  ranks 2 negotiation negotiation "${waits[@]}" --benchmark_filter=-flight_record
}
run_negotiation_nodes() {
  HORA_RANKS_PER_NODE=1 ranks 2 negotiation_nodes negotiation "${waits[@]}" \
    --benchmark_filter=-flight_record
}
run_record() {
  local filter=(--benchmark_filter=flight_record)
  ranks 2 record negotiation "${waits[@]}" "${filter[@]}" || return
  HORA_RANKS_PER_NODE=1 ranks 2 record_nodes negotiation "${waits[@]}" "${filter[@]}"
}
run_resnet18() {
  local run
  for ((run = 1; run <= runs; ++run)); do
    step "training_resnet18_$run" resnet18 "$blocks" 4 2 || return
  done
}
run_resnet18_cifar() { slow_step resnet18_cifar; }
run_resnet50() { slow_step resnet50; }
run_one_layer() { step training_one_layer one_layer "$blocks" 3 2; }
run_tiny_layers() { step training_tiny_layers tiny_layers "$blocks" 5 2; }
run_ranks() {
  local count
  for ((count = 1; count <= cores; count *= 2)); do
    step "ranks_$count" resnet18 6 3 "$count" --contenders hora_copies,hora_one_pass,c10d_gloo || return
  done
}
run_two_hosts() {
  local algorithm size=16MiB
  [[ -n $quick ]] || size=64MiB
  for algorithm in default ring; do
    local settings=()
    [[ $algorithm == default ]] ||
      settings=(OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_allreduce_algorithm=4)
    env "${settings[@]}" tests/two_hosts/two_hosts.sh --rate 1gbit "$PWD/$build/bench/allreduce_perf" \
      --min-bytes "$size" --max-bytes "$size" --blocks 3 --benchmark_min_time=1 \
      --benchmark_filter='allreduce/(hora|hora_bucket|mpi)/' \
      --benchmark_out="$PWD/$logs/two_hosts_$algorithm.json" || return
    mv "$logs/two_hosts_$algorithm.json" "$folder/two_hosts_$algorithm.json" || return
  done
}
run_horovod() {
  if [[ -n $quick ]]; then
    bench/peers/horovod.sh --build "$build" --rounds 1 --set-up-limit 20 "$folder"
  else
    bench/peers/horovod.sh --build "$build" "$folder"
  fi
}

# Files of a part, to see whether it has been run.
files_of() {
  case $1 in
    resnet18) echo "training_resnet18_$runs.json" ;;
    resnet18_cifar | resnet50 | one_layer | tiny_layers) echo "training_$1.json" ;;
    types) if [[ -n $quick ]]; then echo allreduce_type_half.json; else echo allreduce_type_int64.json; fi ;;
    many_ranks) echo allreduce_ranks_8.json ;;
    record) echo record_nodes.json ;;
    ranks) echo ranks_1.json ;;
    two_hosts) echo two_hosts_ring.json ;;
    horovod) echo horovod_1.json ;;
    *) echo "$1.json" ;;
  esac
}

status=0 number=0
for part in "${parts[@]}"; do
  ((++number))
  if [[ -n $go_on && -e $folder/$(files_of "$part") ]]; then
    echo "[$number/${#parts[@]}] $part: there already"
    continue
  fi
  busy=$(python3 -B bench/report/machine.py --busy)
  printf '[%d/%d] %2d:%02d %s' "$number" "${#parts[@]}" $((SECONDS / 60)) $((SECONDS % 60)) "$part"
  ! awk "BEGIN { exit !($busy > 0.1) }" || printf ' (busy: %s of all cores with something else)' "$busy"
  python3 -B bench/report/machine.py --note "$folder/machine.json" "$part" "$busy" || exit
  "run_$part" > "$logs/$part.log" 2>&1
  case $? in
    0) echo ": done" ;;
    77) echo ": $(tail -n 1 "$logs/$part.log")" ;;
    *) status=1; echo ": FAILED; the end of $logs/$part.log:"; tail -n 15 "$logs/$part.log" ;;
  esac
done

report=(python3 -B bench/report/report.py "$folder")
[[ -z $readme ]] || report+=(--readme README.md)
"${report[@]}" || exit
printf '%d:%02d minutes; %s/report.md\n' $((SECONDS / 60)) $((SECONDS % 60)) "$folder"
exit "$status"
