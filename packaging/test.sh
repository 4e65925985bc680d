#!/usr/bin/env bash
# Builds the README's first program against hora as users can have it, and runs it with two ranks.
#
# Usage: packaging/test.sh [WAY...]      (default: all)
#   deb        Debian's packages (cmake/package.sh), checked by lintian, installed by apt in a fresh Debian 12, and
#              purged; the time from apt to the first step; whether a second build gives the same bytes. As root
#   installed  cmake --install: find_package(hora), and pkg-config
#   fetched    FetchContent
#   conan      conanfile.py, by PyPI's conan
#   container  examples/recipes/docker/Dockerfile, by buildah on such a Debian: builds, trains. As root
#   abi        whether programs linked with the last tag's libhora run with this one, by abidiff
#   recipes    vcpkg's, Spack's and Apptainer's files: their syntax, and whether CMake takes their arguments
# Exit code: 0 only where every way has worked.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
root=$PWD work=$PWD/build/packaging
source cmake/debian.sh
source cmake/ccache.sh
hora_install_packages build torch package packaging
mkdir -p "$work"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1

fail() {
  echo "packaging/test.sh: $*" >&2
  exit 1
}

# write_consumer FOLDER: the README's program, with its CMakeLists.txt.
write_consumer() {
  rm -rf "$1"
  mkdir -p "$1"
  awk -v folder="$1" '
    /^```/ { file = "" }
    /^(\/\/ train.cpp|# CMakeLists.txt)$/ { file = folder "/" $2; next }
    file { print > file }' README.md
}

# trains PROGRAM...: it prints a loss that falls, on two ranks.
trains() {
  "$@" | tee "$work/losses"
  awk '{ last = $1; if (NR == 1) first = $1 } END { exit !(NR == 4 && last < first) }' "$work/losses" ||
    fail "$*: the loss does not fall"
}

build_consumer() { # FOLDER OPTION_OF_CMAKE...
  cmake -S "$1" -B "$1/build" -G Ninja "${@:2}"
  cmake --build "$1/build"
}

# fresh_debian FOLDER: a Debian 12 with nothing but what is essential; mounts are its own (see in_debian).
fresh_debian() {
  local mirror
  # shellcheck disable=SC2016  # for apt
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
  if [[ ! -e $work/debian.tar ]]; then
    debootstrap --variant=minbase bookworm "$work/base" "$mirror" > "$work/debootstrap.log"
    # Settings by which this machine reaches its mirror.
    rm "$work/base/etc/apt/sources.list"
    cp -r /etc/apt/sources.list* /etc/apt/apt.conf.d "$work/base/etc/apt/"
    tar -C "$work/base" -cf "$work/debian.tar" .
    rm -rf "$work/base"
  fi
  rm -rf "$1"
  mkdir -p "$1"
  tar -C "$1" -xf "$work/debian.tar"
}

in_debian() { # FOLDER COMMAND...
  # shellcheck disable=SC2016  # for the inner shell
  unshare --mount --pid --fork bash -c 'mount --rbind /dev "$0/dev" && mount -t proc none "$0/proc" &&
    mount -t tmpfs none "$0/dev/shm" && exec chroot "$0" "$@"' "$@" < /dev/null
}

way_deb() {
  local debian=$work/debian begin before
  cmake/package.sh "$work/packages"
  lintian --fail-on error "$work"/packages/*.deb

  fresh_debian "$debian"
  write_consumer "$debian/consumer"
  cp "$work"/packages/*.deb "$debian/consumer/"
  in_debian "$debian" apt-get -qq update
  before=$(find "$debian" -xdev | sort)
  begin=$SECONDS
  # --no-install-recommends: a bare machine's trade; g++ and cmake are the user's own.
  in_debian "$debian" sh -c 'DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
    g++ cmake make /consumer/*.deb' > "$work/apt.log" 2>&1 || { cat "$work/apt.log"; fail "apt"; }
  echo "installed by apt after $((SECONDS - begin)) s"
  in_debian "$debian" sh -c 'cmake -S /consumer -B /consumer/build && cmake --build /consumer/build' > "$work/build.log"
  trains in_debian "$debian" horarun -np 2 --no-prefix-output --allow-run-as-root /consumer/build/train
  echo "trained after $((SECONDS - begin)) s"
  in_debian "$debian" apt-get -qq purge -y libhora0 libhora-dev horarun libhora-torch-dev > "$work/purge.log"
  comm -13 <(echo "$before") <(find "$debian" -xdev | sort) | grep -i hora | grep -v "^$debian/consumer" &&
    fail "the packages leave files behind"
  echo "purged without a trace"
  cmake --build build/package --target clean
  CCACHE_DISABLE=1 cmake/package.sh "$work/again"
  diff -r "$work/packages" "$work/again" || fail "two builds differ"
}

way_installed() {
  cmake --preset release -B "$work/build" -DHORA_TESTS=OFF -DHORA_BENCH=OFF -DHORA_EXAMPLES=OFF > "$work/configure.log"
  cmake --build "$work/build"
  rm -rf "$work/prefix"
  cmake --install "$work/build" --prefix "$work/prefix" > "$work/install.log"
  write_consumer "$work/installed"
  build_consumer "$work/installed" -DCMAKE_PREFIX_PATH="$work/prefix"
  trains "$work/prefix/bin/horarun" -np 2 --no-prefix-output "$work/installed/build/train"
  local flags
  flags=$(PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name hora.pc)") pkg-config --cflags --libs hora-torch)
  # shellcheck disable=SC2086  # words
  c++ -std=c++20 -o "$work/installed/by_pkg_config" "$work/installed/train.cpp" $flags
  trains "$work/prefix/bin/horarun" -np 2 --no-prefix-output "$work/installed/by_pkg_config"
}

way_fetched() {
  write_consumer "$work/fetched"
  sed -i "s|^find_package(hora.*|include(FetchContent)\nFetchContent_Declare(hora SOURCE_DIR $root)\nFetchContent_MakeAvailable(hora)|" \
    "$work/fetched/CMakeLists.txt"
  build_consumer "$work/fetched"
  [[ -z $(find "$work/fetched/build" -name '*_test' -o -name 'cifar10' -o -name 'allreduce_perf') ]] ||
    fail "hora's tests, examples or benchmarks are built with the project"
  trains "$(find "$work/fetched/build" -name horarun -type f)" -np 2 --no-prefix-output "$work/fetched/build/train"
}

way_conan() {
  [[ -e $work/venv/bin/conan ]] || { python3 -m venv "$work/venv" && "$work/venv/bin/pip" -q install 'conan>=2'; }
  export CONAN_HOME=$work/conan
  local conan=$work/venv/bin/conan version
  version=$(sed -n 's/^project(hora VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  [[ -e $CONAN_HOME/profiles/default ]] || "$conan" profile detect
  "$conan" create . -s compiler.cppstd=20 --no-remote
  write_consumer "$work/by_conan"
  (cd "$work/by_conan" && # where it leaves CMakeUserPresets.json
    "$conan" install --requires="hora/$version" -s compiler.cppstd=20 --no-remote -g CMakeToolchain --output-folder .)
  build_consumer "$work/by_conan" -DCMAKE_TOOLCHAIN_FILE="$work/by_conan/conan_toolchain.cmake" \
    -DCMAKE_BUILD_TYPE=Release
  trains "$(find "$CONAN_HOME/p" -path '*/p/bin/horarun')" -np 2 --no-prefix-output "$work/by_conan/build/train"
}

way_container() {
  local buildah=(buildah --storage-driver vfs --root "$work/images" --runroot "$work/run") container
  rm -rf "$work/context"
  mkdir -p "$work/context"
  fresh_debian "$work/debian"
  rm -rf "$work/debian"
  cp "$work/debian.tar" "$work/context/"
  printf 'FROM scratch\nADD debian.tar /\n' > "$work/context/Dockerfile"
  "${buildah[@]}" bud -q --isolation chroot -t docker.io/library/debian:12 "$work/context"
  "${buildah[@]}" bud -q --isolation chroot --network host --pull-never -t hora \
    -f examples/recipes/docker/Dockerfile .
  container=$("${buildah[@]}" from --pull-never hora)
  awk 'BEGIN { for (; i < 1797; ++i) { for (j = 0; j < 64; ++j) printf "%d,", i * j % 17; print i % 10 } }' |
    "${buildah[@]}" run --isolation chroot "$container" prepare_digits --output data
  "${buildah[@]}" run --isolation chroot --network host "$container" horarun -np 2 cifar10 --data data --epochs 1 \
    --limit 256 -a resnet20
  "${buildah[@]}" rm "$container"
}

way_abi() {
  local tag libraries=() folder library
  tag=$(git describe --tags --abbrev=0 2> /dev/null) ||
    { echo "no release has been tagged yet: nothing to compare with"; return; }
  rm -rf "$work/last"
  mkdir -p "$work/last"
  git archive "$tag" | tar -C "$work/last" -x
  for folder in "$work/last" "$root"; do
    cmake -S "$folder" -B "$folder/build/abi" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBUILD_SHARED_LIBS=ON \
      -DHORA_{TORCH,TESTS,BENCH,EXAMPLES,INSTALL}=OFF > "$work/abi.log"
    cmake --build "$folder/build/abi" --target hora
    library=$(realpath "$folder/build/abi/ops/libhora.so")
    libraries+=("$library")
  done
  if [[ $(readlink "${libraries[0]%/*}/libhora.so") != $(readlink "${libraries[1]%/*}/libhora.so") ]]; then
    echo "HORA_SOVERSION is another one than $tag's: programs are to be linked anew"
    return
  fi
  abidiff --no-added-syms "${libraries[@]}" ||
    fail "programs linked with $tag's libhora do not run with this one: raise HORA_SOVERSION"
}

# What is tried nowhere but here: no registry is asked.
way_recipes() {
  local arguments
  python3 -m json.tool packaging/vcpkg/hora/vcpkg.json > /dev/null
  python3 -m ast packaging/spack/packages/hora/package.py > /dev/null
  arguments=$(grep -ohE '(-D|"-D)?HORA_[A-Z]+[=:][A-Z]+' packaging/vcpkg/hora/portfile.cmake packaging/apptainer/hora.def |
    sed 's/^"*\(-D\)*/-D/' | sort -u)
  # shellcheck disable=SC2086  # words
  cmake -S . -B "$work/recipes" -G Ninja -Werror=dev --warn-unused-vars $arguments > "$work/recipes.log" 2>&1 ||
    { cat "$work/recipes.log"; fail "their arguments"; }
}

(($# > 0)) || set -- deb installed fetched conan container abi recipes
done=()
for way; do
  declare -F "way_$way" > /dev/null || fail "unknown way ${way@Q}"
  echo "=== $way"
  "way_$way"
  done+=("$way")
done
echo "hora can be had by: ${done[*]}"
