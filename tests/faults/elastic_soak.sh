#!/usr/bin/env bash
# Random losses in elastic trainings of the CIFAR-10 program: ranks (most often), or what the list at the end names;
# some with too little shared memory. How long each takes, how many steps it costs, and whether the model has the
# bytes of a training that lost nothing. tests/soak.sh --elastic calls it.
# Usage: elastic_soak.sh BUILD LOSSES SEED      Exit code: 0 only where no training hung, all models are equal.
set -euo pipefail
root=$(dirname "$(realpath "$0")")/../..
# shellcheck source-path=SCRIPTDIR source=../examples/cifar10/made_digits.sh
source "$root/tests/examples/cifar10/made_digits.sh"
build=$(realpath "$1") losses=$2 RANDOM=$3
begin_work elastic_soak
made_digits 9 7 > digits.csv
"$build/examples/prepare_digits" --output data < digits.csv > /dev/null

layouts=('-np 2' '-np 2 --ranks-per-node 1' '-np 4 --ranks-per-node 2')
variants=('' '--zero' '--zero --fused-update' '--accumulate 2' '--opt adam' '--compression powersgd' '--sync-bn')

begin() { # HORARUN_OPTION...
  local shell=()
  if ((small)); then
    local ranks=${layout#-np } # hora needs 4 MiB each
    # shellcheck disable=SC2016  # for the inner shell
    shell=(unshare --mount bash -c 'mount -t tmpfs -o "size=$0m" none /dev/shm && exec "$@"' $((${ranks%% *} * 4 + 4)))
  fi
  # shellcheck disable=SC2086  # words
  HORA_TIMEOUT=5 "${shell[@]}" "$build/core/launch/horarun" --no-prefix-output --binding none "$@" $layout \
    "$build/examples/cifar10" --data data -a resnet20 --stem imagenet --epochs 4 --limit 1000 --batch 2 --seed 5 \
    --print-freq 1 $variant --save model.pt < /dev/null > output 2>&1 &
  job=$!
}
# Whether a generation that has begun after so many lines has made a step.
steps_after() { awk -v lines="$1" 'NR > lines && /^model: /{begun = 1} begun && /^Epoch: /{s = 1} END{exit !s}' output; }
# Waits for that; 1: the training has ended, 2: not within 40 s.
wait_for_step() {
  local end=$((SECONDS + 40))
  until steps_after "$1"; do
    if ! kill -0 "$job" 2> /dev/null || grep -q '^saved the model' output; then return 1; fi
    ((SECONDS < end)) || return 2
    sleep 0.01
  done
}
now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }

declare -A reference
count=0 hung=0 different=0 trainings=0
while ((count < losses)); do
  layout=${layouts[RANDOM % ${#layouts[@]}]} variant=${variants[RANDOM % ${#variants[@]}]}
  [[ $variant != *fused* || $layout != *node* ]] || continue # for one node
  if [[ -z ${reference[$layout$variant]:-} ]]; then
    small=0
    begin
    wait "$job" || { echo "$layout $variant: an undisturbed training fails:"; tail -n 20 output; exit 1; }
    reference[$layout$variant]=$(sha256sum < model.pt)
  fi
  rm -f model.pt
  small=$((EUID == 0 && RANDOM % 8 == 0)) # too little shared memory for commits
  begin --elastic --blacklist-cooldown-range 1 1
  lines=0 lost=()
  while ((count < losses)); do
    ended=0
    wait_for_step "$lines" || ended=$?
    ((ended == 0)) || break
    sleep "0.$((RANDOM % 10))"
    mapfile -t ranks < <(processes cifar10)
    ((${#ranks[@]} > 0)) || break
    kind=$((RANDOM % 12)) signal=KILL victims=("${ranks[RANDOM % ${#ranks[@]}]}")
    case $kind in
      0) mapfile -t victims < <(processes horarun ' --guard ' | head -n 1) ;;
      1) mapfile -t victims < <(processes 'mpi(run|exec).*|prterun') ;;
      2) victims=("${ranks[@]}") ;;
      3) signal=STOP ;;
      4) mapfile -t victims < <(processes horarun ' --agent') ;;
    esac
    lines=$(wc -l < output) start=$(now_ms)
    kill -"$signal" "${victims[@]}" 2> /dev/null || break # it has just come to its end
    if ((kind == 5)); then # and again, while it recovers
      sleep "0.$((RANDOM % 9 + 1))"
      mapfile -t victims < <(processes 'cifar10|mpi(run|exec).*|prterun')
      lines=$(wc -l < output)
      ((${#victims[@]} == 0)) || kill -KILL "${victims[RANDOM % ${#victims[@]}]}" 2> /dev/null || true
    fi
    wait_for_step "$lines" || ended=$?
    ((ended == 0)) || break
    took=$(($(now_ms) - start))
    ((kind > 2 && kind < 6)) || echo "$took $layout" >> took.txt
    echo "$kind" >> kinds.txt
    lost+=("$kind:$took")
    ((++count))
  done
  if ((ended == 2)); then
    ((++hung))
    echo "HUNG: $layout $variant"; tail -n 20 output
    kill -KILL "$job"
  fi
  mapfile -t ranks < <(processes cifar10)
  ((${#ranks[@]} == 0)) || kill -CONT "${ranks[@]}" 2> /dev/null || true # stopped at its very end
  wait "$job" || true
  job=
  ((++trainings))
  where="$layout $variant"
  ((small == 0)) || where+=", little shared memory"
  sed -n "/its agent has ended/d; s/^horarun: generation.* \\([0-9]*\\) steps* lost\$/\\1 $where/p" output >> lost.txt
  if [[ $(sha256sum 2> /dev/null < model.pt) != "${reference[$layout$variant]}" ]]; then
    ((++different))
    echo "DIFFERENT: $layout $variant, losses ${lost[*]}"; grep '^horarun' output || true; tail -n 5 output
  fi
done
echo "$count losses in $trainings trainings: $hung hung, $different models differ"
names=(guard mpirun 'all ranks' 'a rank stopped' agent 'one more while it recovers')
for kind in "${!names[@]}"; do printf '  %s: %d\n' "${names[kind]}" "$(grep -cx "$kind" kinds.txt || true)"; done
for layout in "${layouts[@]}"; do
  { grep -e " $layout\$" took.txt || true; } | sort -n | awk -v layout="$layout" '{t[NR] = $1} END{
    if (NR) printf "%-28s %4d losses, until the next step: median %.2f s, worst %.2f s\n", layout, NR, t[int((NR + 1) / 2)] / 1000, t[NR] / 1000}'
done
sort lost.txt | awk '{all[$1 > 0] += 1; key = $0; sub(/^[0-9]+ /, "", key); if ($1 > 0) {with[key] += 1; if ($1 > most[key]) most[key] = $1}}
  END{printf "no step lost: %d of %d\n", all[0], all[0] + all[1]; for (key in with) printf "  %s: %d times some, at most %d\n", key, with[key], most[key]}'
((hung == 0 && different == 0))
