#!/usr/bin/env bash
# Makes a Python that has the readers of what hora writes, in build/python-readers, once, and prints its
# path: PyPI's safetensors and TensorBoard beside what the machine's own Python has, such as Debian's
# torchvision. Tests take it from the environment as TEST_PYTHON. Everything else goes to the error
# stream, so that this serves in $(...).
#
# Usage: cmake/python_readers.sh [--help]
#
# Downloads 7 MB. Exit code 1, with the reason, where that cannot be: without network, pip or venv.
set -euo pipefail

# Of TensorBoard's requirements those that its reader imports; numpy is the machine's.
readonly packages=(safetensors==0.6.2 tensorboard==2.20.0 protobuf==6.33.0 absl-py==2.3.1
  packaging==25.0)

say() { echo "$*" >&2; }
stop() { say "cmake/python_readers.sh: $*"; exit 1; }

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"
  exit 0
fi
(($# == 0)) || stop "unknown argument $1"
root=$(cd "$(dirname "$(realpath "$0")")/.." && pwd)
readonly root folder=$root/build/python-readers

# machine_python: prints the first Python with torchvision, else with numpy. Debian's packages belong to
# Debian's Python, whatever else PATH finds first.
machine_python() {
  local module python
  for module in torchvision numpy; do
    for python in python3 /usr/bin/python3; do
      if "$python" -c "import importlib.util as u, sys; sys.exit(not u.find_spec('$module'))" 2> /dev/null; then
        command -v "$python"
        return
      fi
    done
  done
  return 1
}

python=$(machine_python) || stop "no Python 3 with numpy here (Debian: python3-numpy)"
# The marker says what the folder holds: another list, or another Python, replaces it.
contents="$(realpath "$python") ${packages[*]}"
mkdir -p "$root/build"
# One installation at a time.
exec {lock}> "$root/build/python-readers.lock"
flock "$lock"
if [[ $(cat "$folder/contents.txt" 2> /dev/null) != "$contents" ]]; then
  rm -rf "$folder"
  "$python" -m venv --system-site-packages "$folder" >&2 ||
    stop "$python cannot make a virtual environment (Debian: python3-venv); its message stands above."
  say "Installing ${packages[*]} into build/python-readers"
  "$folder/bin/python" -m pip install --quiet --no-deps --only-binary=:all: --retries 2 "${packages[@]}" >&2 ||
    stop "pip could not install ${packages[*]}; its message stands above."
  echo "$contents" > "$folder/contents.txt"
fi
echo "$folder/bin/python"
