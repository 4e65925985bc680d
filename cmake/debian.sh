# Shell functions that scripts source: see what is missing on this machine, and install it.
# The packages and their groups are in debian-packages.txt.
# shellcheck shell=bash

hora_packages_file=$(dirname "${BASH_SOURCE[0]}")/debian-packages.txt

# True where the environment's CMAKE_PREFIX_PATH brings a LibTorch: Debian's is not needed then, nor what
# would bring it.
_hora_own_libtorch() {
  local prefixes prefix
  IFS=':;' read -ra prefixes <<< "${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    [[ -e $prefix/include/torch/csrc/api/include/torch/torch.h ]] && return 0
  done
  return 1
}

# _hora_is_there PACKAGE KIND NAME
_hora_is_there() {
  if [[ $1 == libtorch-dev || $1 == python3-torchvision ]] && _hora_own_libtorch; then
    return 0
  fi
  if [[ $2 == command ]] && command -v "$3" > /dev/null; then
    return 0
  fi
  if command -v dpkg-query > /dev/null; then
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null) == installed ]]
    return
  fi
  case $2 in
    command) return 1 ;;
    header) echo "#include <$3>" | c++ -x c++ -std=c++20 -M - > /dev/null 2>&1 ||
      [[ -e /usr/include/$3 || -e /usr/local/include/$3 ]] ;;
    file) [[ -e $3 ]] ;;
    *) echo "$hora_packages_file: unknown kind '$2' for $1" >&2; exit 1 ;;
  esac
}

# hora_missing_packages GROUP...: one name a line.
hora_missing_packages() {
  local group package kind name
  while read -r group package kind name; do
    [[ -z $group || $group == \#* || " $* " != *" $group "* ]] && continue
    _hora_is_there "$package" "$kind" "$name" || echo "$package"
  done < "$hora_packages_file"
}

# hora_install_packages GROUP...: as root or with sudo on Debian; elsewhere names what is missing
# and exits with 1.
hora_install_packages() {
  local missing as_root=()
  mapfile -t missing < <(hora_missing_packages "$@")
  ((${#missing[@]} > 0)) || return 0
  if ! command -v apt-get > /dev/null; then
    echo "Missing here, by the names of their Debian packages: ${missing[*]}" >&2
    echo "Install what they stand for on this system, then run this again." >&2
    exit 1
  fi
  if ((EUID != 0)); then
    if ! command -v sudo > /dev/null; then
      echo "Missing packages: ${missing[*]}" >&2
      echo "Run this as root or with sudo, or: apt-get install ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "Installing ${missing[*]}"
  "${as_root[@]}" apt-get -q -o Acquire::Retries=3 update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y -o Acquire::Retries=3 --no-install-recommends install "${missing[@]}"
}
