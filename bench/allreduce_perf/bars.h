/// The bars for allreduce. Pure.
#pragma once

#include <vector>

#include "bench/harness/comparison.h"

namespace bench {

/// On 2 ranks of one node.
inline std::vector<Bar> allreduce_bars() {
  return {
      {"hora_bucket", "vs_mpi", {"mpi", "mpi_out_of_place"}, 3.0, 64 * kib},
      {"hora_bucket", "vs_mpi_copy", {"mpi_copy"}, 7.0, 1 * mib, 16 * mib},
      {"hora_bucket", "vs_private_memory", {"private_memory"}, 0.9, 4 * mib},
      {"hora", "vs_mpi", {"mpi", "mpi_out_of_place"}, 1.5, 1 * mib},
  };
}

}  // namespace bench
