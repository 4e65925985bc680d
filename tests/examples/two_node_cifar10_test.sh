#!/usr/bin/env bash
# two_node_cifar10.sh with every tool it calls replaced by one that only notes the call.
# Usage: two_node_cifar10_test.sh ROOT
set -euo pipefail
root=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/two_node_cifar10_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/tree calls=$work/calls output=$work/output

fail() {
  cat "$output" "$calls"
  echo "FAILED: $*"
  exit 1
}

# --- Tools ---------------------------------------------------------------------------------------
mkdir -p "$work/bin"
for tool in bash dirname realpath mkdir rm mv cat tar gzip md5sum cp; do
  ln -s "$(command -v $tool)" "$work/bin/$tool"
done
fake() {
  {
    echo '#!/bin/bash'
    echo "echo \"\${0##*/} \$*\" >> '$calls'"
    cat
  } > "$work/bin/$1"
  chmod +x "$work/bin/$1"
}
fake nproc <<< 'echo 9'
fake dpkg-query <<< 'echo installed'
fake curl <<< "[[ -e '$work/network' ]] || exit 7
for word; do last=\$file; file=\$word; [[ \$last == --output ]] && cp '$work/network' \"\$file\"; done
exit 0"
fake apt-get <<< "[[ \$* == *download* ]] && touch_deb=python3-sklearn_1_all.deb && : > \$touch_deb"
fake cmake <<< "echo \"ccache \$CCACHE_BASEDIR \$CCACHE_NOHASHDIR \$CCACHE_SLOPPINESS\" >> '$calls'
[[ \$1 == --preset ]] && mkdir -p build/release && : > build/release/build.ninja
[[ \$1 != --build ]] || { mkdir -p build/release/examples build/release/core/launch
cp '$work/bin/prepare' build/release/examples/prepare_digits
cp '$work/bin/horarun' build/release/core/launch/; }"
# shellcheck disable=SC2016  # for the fake to expand
fake prepare <<< 'mkdir "$2"; cat > "$2/read"'
fake horarun <<< "printf '%s\n' \"\$@\" > '$work/horarun_arguments'"
mkdir -p "$work/package/usr/sklearn/datasets/data"
echo 'the digits' | gzip > "$work/package/usr/sklearn/datasets/data/digits.csv.gz"
fake dpkg-deb <<< "tar -c -C '$work/package' ."

fresh_tree() {
  rm -rf "$tree"
  mkdir -p "$tree/examples" "$tree/cmake" "$tree/elsewhere"
  cp "$root/examples/two_node_cifar10.sh" "$tree/examples/"
  cp "$root"/cmake/{debian.sh,debian-packages.txt,ccache.sh} "$tree/cmake/"
}

# Called from another folder, as a user would; sets `code`.
run() {
  : > "$calls"
  rm -f "$work/horarun_arguments"
  code=0
  (cd "$tree/elsewhere" && PATH=$work/bin "$work/bin/bash" ../examples/two_node_cifar10.sh "$@") \
    > "$output" 2>&1 || code=$?
}
says() { grep -qF -- "$1" "$output" || fail "it does not say '$1'"; }
called() { grep -q -- "$1" "$calls" || fail "it did not call '$1'"; }
not_called() { ! grep -q -- "$1" "$calls" || fail "it called '$1'"; }
passed() { grep -qxF -- "$1" "$work/horarun_arguments" || fail "horarun did not get '$1'"; }
not_passed() { ! grep -qF -- "$1" "$work/horarun_arguments" || fail "horarun got '$1'"; }

# --- Options -------------------------------------------------------------------------------------
fresh_tree
run --help
((code == 0)) || fail "--help"
[[ ! -s $calls ]] || fail "--help calls something"
for option in epochs batch lr momentum weight-decay seed stem data workers limit hosts report save \
    device amp channels-last; do
  says "--$option"
done
[[ $(grep -c '\[default: ' "$output") == 16 ]] || fail "defaults in --help"

refuses() {
  local what=$1
  shift
  run "$@"
  ((code == 2)) || fail "exit code $code for $*"
  says "$what"
  [[ ! -s $calls ]] || fail "called something for $*"
}
# Of each: the words on the command line, and what is said. `eval` reads the words.
while read -r line; do
  eval "refuses \"\${line#* => }\" ${line%% => *}"
done << 'END'
--hosts 'a:2,a;reboot:2' => --hosts: 'a:2,a;reboot:2' is not HOST:RANKS
--hosts -x:2 => --hosts: '-x:2' is not
--hosts a:0 => --hosts: 'a:0' is not
--hosts a => --hosts: 'a' is not
--hosts a:2, => --hosts: 'a:2,' is not
--hosts ,a:2 => --hosts: ',a:2' is not
--hosts $'a:2\nb:2 --mca' => --hosts: $'a:2\nb:2 --mca' is not
--hosts $'a:2\n' => --hosts: $'a:2\n' is not
--hosts '' => --hosts: '' is not
--hosts= => --hosts: '' is not
--epochs many => --epochs: 'many' is not a whole number
--epochs $'3\n4' => --epochs: $'3\n4' is not
--lr=-1 => --lr: '-1' is not a number of 0 or more
--stem resnet => --stem: 'resnet' is not cifar or imagenet
--device gpu => --device: 'gpu' is not cpu or cuda
--amp fp8 => --amp: 'fp8' is not off or fp16 or bf16
--amp 'off|fp16' => --amp: 'off|fp16' is not
--data absent => there is no folder 'absent'
--report absent/r.json => there is no folder for 'absent/r.json'
--save $'a\e[2Jb' => --save: $'a\E[2Jb' is not a path of printable characters
--epoch 3 => unknown option '--epoch'
--no-train=yes => unknown option '--no-train=yes'
'--$(touch injected)' 3 => unknown option '--$(touch injected)'
'--[0]=1' => unknown option '--[0]=1'
leftover => unknown argument 'leftover'
'' => unknown argument ''
-e 3 => unknown argument '-e'
END
[[ ! -e $tree/elsewhere/injected ]] || fail "an option was run"

# No option is without its value, and none takes the next one for it.
run --help
mapfile -t valued < <(grep -oE '^  --[a-z-]+ [A-Za-z]' "$output" | grep -oE -- '--[a-z-]+')
((${#valued[@]} == 16)) || fail "options with a value in --help: ${valued[*]}"
for option in "${valued[@]}"; do
  refuses "$option: '' is not" "$option="
  refuses "$option: '' is not" "$option=" --no-train
  refuses "$option: '' is not" "$option" ''
  refuses "$option: a value is missing" "$option"
  refuses "$option: a value is missing" "$option" --no-train
done

# --- Set-up and training -------------------------------------------------------------------------
run --epochs 2 --epochs=3 --save 'my model.pt'
((code == 0)) || fail "exit code $code"
says 'NOT CIFAR-10'
called '^curl .*--connect-timeout 5 .*https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'
called '^cmake --preset release'
called '^cmake --build .* --target horarun cifar10 prepare_digits$'
called "^ccache $tree 1 pch_defines,time_macros$"
called '^apt-get .*download python3-sklearn'
not_called 'install'
[[ $(cat "$tree/build/data/digits/read") == 'the digits' ]] || fail "what prepare_digits read"
[[ $(ls "$tree/build/data") == digits ]] || fail "left behind: $(ls "$tree/build/data")"
for word in -np 4 --ranks-per-node 2 --no-prefix-output --mca mpi_yield_when_idle \
  "$tree/build/release/examples/cifar10" "$tree/build/data/digits" --epochs 3 \
  "$tree/elsewhere/my model.pt"; do
  passed "$word"
done
# The command it shows is the command it runs.
mv "$work/horarun_arguments" "$work/ran"
shown=$(sed -n 's/^\$ //p' "$output")
(PATH=$work/bin && eval "$shown")
cmp "$work/ran" "$work/horarun_arguments" || fail "it shows another command than it runs"

run
((code == 0)) || fail "the second call"
not_called '^curl'
not_called '^apt-get'
not_called '^prepare'
not_called '^cmake --preset'
passed "$tree/build/data/digits"

mkdir "$tree/elsewhere/mine"
run --hosts a:2,node-b.example:3 --data mine
((code == 0)) || fail "--hosts"
passed --hosts
passed a:2,node-b.example:3
passed 5
passed "$tree/elsewhere/mine"
not_passed --ranks-per-node
not_passed --oversubscribe
# horarun gives each rank its share of the cores of its own host.
not_passed OMP_NUM_THREADS

run --epochs 3 -- -a resnet50 --log-json '/tmp/a log.json' --epochs
((code == 0)) || fail "-- and what follows it"
mapfile -t words < "$work/horarun_arguments"
[[ $(printf '%s,' "${words[@]: -7}") == '--epochs,3,-a,resnet50,--log-json,/tmp/a log.json,--epochs,' ]] ||
  fail "what follows -- is not passed on as it is: ${words[*]}"

run --no-train
((code == 0)) || fail "--no-train"
not_called '^horarun'

# --- What may come from the network --------------------------------------------------------------
fresh_tree
echo 'not the archive' > "$work/network"
run
((code == 0)) || fail "exit code $code"
says 'does not have the published checksum'
says 'NOT CIFAR-10'
passed "$tree/build/data/digits"

fresh_tree
mkdir -p "$work/cifar-10-batches-bin"
echo 'records' > "$work/cifar-10-batches-bin/data_batch_1.bin"
tar -czf "$work/network" -C "$work" cifar-10-batches-bin
sum=$(md5sum "$work/network")
sed -i "s/^published_md5=.*/published_md5=${sum%% *}/" "$tree/examples/two_node_cifar10.sh"
run
((code == 0)) || fail "exit code $code"
says 'Data: CIFAR-10'
passed "$tree/build/data/cifar-10-batches-bin"
not_called '^apt-get'
[[ $(ls "$tree/build/data") == cifar-10-batches-bin ]] || fail "left behind"
run
not_called '^curl'
passed "$tree/build/data/cifar-10-batches-bin"

# --- Where packages cannot be installed ----------------------------------------------------------
fake dpkg-query <<< 'exit 1'
rm "$work/bin/apt-get"
run
((code == 1)) || fail "exit code $code"
says libtorch-dev
not_called '^cmake'
echo "all as expected"
