#!/usr/bin/env bash
# Makes Debian's packages of hora in FOLDER: libhora0, libhora-dev, horarun, libhora-torch-dev. As root or with
# sudo it installs first what is missing. One commit gives the same bytes each time.
#
# Usage: cmake/package.sh [FOLDER]      (default: build/package/packages)
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
folder=$(realpath -m "${1:-build/package/packages}")

source cmake/debian.sh
source cmake/ccache.sh
hora_install_packages build torch package

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
cmake --preset release -B build/package -DCMAKE_INSTALL_PREFIX=/usr -DBUILD_SHARED_LIBS=ON \
  -DCMAKE_SKIP_INSTALL_RPATH=ON -DHORA_EXAMPLES=OFF -DHORA_BENCH=OFF -DHORA_TESTS=OFF > build/package.configure.log ||
  { cat build/package.configure.log; exit 1; }
cmake --build build/package
rm -rf "$folder"
cpack --config build/package/CPackConfig.cmake -G DEB -B "$folder" > build/package.cpack.log ||
  { cat build/package.cpack.log; exit 1; }
rm -rf "$folder/_CPack_Packages"
ls "$folder"/*.deb
