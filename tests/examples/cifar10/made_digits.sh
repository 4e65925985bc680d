# shellcheck shell=bash
# Sourced by the tests of the CIFAR-10 program: data that is learned in seconds, and its jobs.

fail() {
  echo "FAILED: $*"
  if [[ -e output ]]; then cat output; fi
  exit 1
}

# begin_work NAME: enters a new folder, $work; it goes when this script ends, and so does the job $job.
begin_work() {
  work=$(mktemp -d "${TMPDIR:-/tmp}/$1.XXXXXX")
  job=
  trap end_work EXIT
  cd "$work" || exit
}
end_work() {
  if [[ -n $job ]]; then kill -KILL "$job" 2> /dev/null || true; fi
  rm -rf "$work"
}

# processes NAMES [TEXT]: those that run in $work, have one of the names (a regular expression), and TEXT among
# their arguments. To read the arguments of a process, as pgrep does, waits for that one's memory, on a busy
# machine for seconds: so only with TEXT.
processes() {
  local process name
  for process in /proc/[0-9]*; do
    { read -r name < "$process/comm"; } 2> /dev/null || continue
    [[ $name =~ ^($1)$ && $(readlink "$process/cwd") == "$work" ]] || continue
    if [[ -z ${2:-} ]] || tr '\0' ' ' < "$process/cmdline" | grep -q -e "$2"; then echo "${process#/proc/}"; fi
  done 2> /dev/null
}

# made_digits INK NOISE: 1,797 digits in scikit-learn's CSV, bars of ink at a height that is the label, and
# noise below NOISE on every pixel.
made_digits() {
  awk -v ink="$1" -v noise="$2" 'BEGIN {
    srand(1)
    for (image = 0; image < 1797; ++image) {
      label = image % 10
      for (pixel = 0; pixel < 64; ++pixel) {
        row = int(pixel / 8)
        bar = row == label % 8 ? ink : (label > 7 && row > 5 ? 2 * ink / 3 : 0)
        printf "%d,", bar + int(rand() * noise)
      }
      printf "%d\n", label
    }
  }'
}
