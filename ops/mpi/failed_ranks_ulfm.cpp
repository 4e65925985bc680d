// Open MPI 5, and MPI libraries that have its extension.
#include <mpi.h>
// After mpi.h.
#include <mpi-ext.h>

#include <algorithm>
#include <numeric>

#include "ops/mpi/communicator.h"

namespace hora::internal {
namespace {

bool says_that_a_process_failed(int result) {
  int error_class = MPI_SUCCESS;
  if (MPI_Error_class(result, &error_class) != MPI_SUCCESS) return false;
  return error_class == MPIX_ERR_PROC_FAILED || error_class == MPIX_ERR_PROC_FAILED_PENDING ||
         error_class == MPIX_ERR_REVOKED;
}

/// The ranks of `group` in that of MPI_COMM_WORLD.
std::vector<int> ranks_of_world(MPI_Group group) {
  int size = 0;
  MPI_Group world = MPI_GROUP_NULL;
  if (MPI_Group_size(group, &size) != MPI_SUCCESS || size == 0 ||
      MPI_Comm_group(MPI_COMM_WORLD, &world) != MPI_SUCCESS) {
    return {};
  }
  std::vector<int> own(static_cast<std::size_t>(size));
  std::iota(own.begin(), own.end(), 0);
  std::vector<int> ranks(own.size(), MPI_UNDEFINED);
  const int result = MPI_Group_translate_ranks(group, size, own.data(), world, ranks.data());
  MPI_Group_free(&world);
  if (result != MPI_SUCCESS) return {};
  std::erase(ranks, MPI_UNDEFINED);
  std::ranges::sort(ranks);
  return ranks;
}

}  // namespace

std::vector<int> failed_ranks(int result) {
  MPI_Group failed = MPI_GROUP_NULL;
  if (!says_that_a_process_failed(result) ||
      MPIX_Comm_get_failed(MPI_COMM_WORLD, &failed) != MPI_SUCCESS) {
    return {};
  }
  std::vector<int> ranks = ranks_of_world(failed);
  MPI_Group_free(&failed);
  return ranks;
}

}  // namespace hora::internal
