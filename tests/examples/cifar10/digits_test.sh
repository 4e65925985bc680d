#!/usr/bin/env bash
# ResNet-20 learns the real digits: 2 ranks, each a node, reach 95 % in a few epochs, by the report.
# Usage: digits_test.sh PREPARE_DIGITS CIFAR10 MPIRUN... (the programs; mpirun with its options)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=made_digits.sh
source "$(dirname "$(realpath "$0")")/made_digits.sh"
prepare_digits=$1 cifar10=$2
shift 2
mpirun=("$@")

work=$(mktemp -d "${TMPDIR:-/tmp}/cifar10_digits_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

# Debian's scikit-learn carries them.
for python in python3 /usr/bin/python3; do
  ! folder=$("$python" -c 'import importlib.util as u
print(u.find_spec("sklearn").submodule_search_locations[0])' 2> /dev/null) || break
done
[[ -n $folder ]] || fail "install python3-sklearn (cmake/debian-packages.txt, test)"
gzip -dc "$folder/datasets/data/digits.csv.gz" | "$prepare_digits" --output data

"${mpirun[@]}" "$cifar10" --data data -a resnet20 --stem cifar --batch 32 --epochs 6 --desired-acc 95 \
  --seed 1 --report report.json < /dev/null > output 2>&1 || fail "exit code $?"
cat output report.json
grep -q '"data": "digits",' report.json || fail "other data"
awk -F'[:,]' '/"best_accuracy"/ { found = 1; reached = $2 }
  END { exit !(found && reached >= 95 && reached <= 100) }' report.json ||
  fail "expected an accuracy of 95 % or more"
echo "all as expected"
