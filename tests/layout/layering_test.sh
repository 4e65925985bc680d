#!/usr/bin/env bash
# layering.sh must see each kind of wrong include, and pass a tree without one.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fresh_tree() {
  rm -rf "${work:?}/tree"
  mkdir -p "$work"/tree/{core/include/hora,core/{plan,engine,messages,negotiation},ops/{cross,mpi},frameworks/torch/include/hora,examples,bench}
  echo '#include <vector>' > "$work/tree/core/include/hora/hora.h"
  echo '#include "core/negotiation/topology.h"' > "$work/tree/core/plan/plan.h"
  echo '#include <torch/torch.h>' > "$work/tree/frameworks/torch/include/hora/torch.h"
  printf 'set(HORA_HEADERS_FOR_FRAMEWORKS\n  core/base/diagnostics.h\n  ops/local/kernels.h\n)\n' \
    > "$work/tree/frameworks/torch/CMakeLists.txt"
  printf '#include "%s"\n' core/base/diagnostics.h ops/local/kernels.h \
    > "$work/tree/frameworks/torch/buckets.cpp"
  echo '#include <mpi.h>' > "$work/tree/ops/mpi/communicator.cpp"
  echo '#include <hora/hora.h>' > "$work/tree/examples/a.cpp"
  echo '#include "bench/harness.h"' > "$work/tree/bench/b.cpp"
}

fresh_tree
bash "$here/layering.sh" "$work/tree"

must_find() {
  local file=$1 line=$2
  fresh_tree
  echo "$line" > "$work/tree/$file"
  if bash "$here/layering.sh" "$work/tree"; then
    echo "not found: $line in $file"
    exit 1
  fi
}

must_find core/plan/a.h '#include "ops/local/kernels.h"'
must_find core/plan/a.cpp '#include <mpi.h>'
must_find core/plan/a.cpp '  #  include <cuda_runtime.h>'
must_find core/plan/a.cpp '#include <nccl.h>'
must_find core/plan/a.cpp '#include <torch/torch.h>'
must_find core/plan/a.cpp '#include <hora/torch.h>'
must_find core/plan/a.h '#include "core/engine/engine.h"'
must_find core/messages/a.cpp '#include "core/plan/plan.h"'
must_find ops/cross/a.h '#include "ops/mpi/communicator.h"'
must_find ops/cross/a.cpp '#include <mpi.h>'
must_find ops/mpi/a.cpp '#include <ATen/ATen.h>'
must_find ops/mpi/a.h '#include "frameworks/torch/hooks.h"'
must_find frameworks/torch/a.cpp '#include "examples/model.h"'
must_find frameworks/torch/a.cpp '#include "core/base/log.h"'
must_find frameworks/torch/a.cpp '#include "core/plan/plan.h"'
must_find frameworks/torch/a.cpp '  #  include <ops/local/element.h>'
must_find frameworks/torch/a.h '#include "ops/local/kernels.hpp"'
must_find frameworks/torch/buckets.cpp '// Includes nothing of what is listed.'
must_find frameworks/torch/CMakeLists.txt 'set(SOMETHING_ELSE core/base/diagnostics.h)'
must_find core/include/hora/a.h '#include "core/plan/plan.h"'
must_find core/include/hora/a.h '#include <core/plan/plan.h>'
must_find examples/a.cpp '#include "core/plan/plan.h"'
must_find bench/a.cpp '#include "ops/local/kernels.h"'
must_find bench/a.cpp '#include <hora/plan.h>'
