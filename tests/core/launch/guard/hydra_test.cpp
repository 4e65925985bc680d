#include "core/launch/guard/hydra.h"

#include <gtest/gtest.h>

namespace hora::launch {
namespace {

TEST(StatusOfAbort, IsInMpichsWords) {
  EXPECT_EQ(status_of_abort("step 3\nAbort(7) on node 2 (rank 2 in comm 0): application called "
                            "MPI_Abort(MPI_COMM_WORLD, 7) - process 2\n[cli_2]: readline failed"),
            7);
  EXPECT_EQ(
      status_of_abort("Abort(-1) on node 0 (rank 0 in comm 0): application called MPI_Abort("),
      255);
  EXPECT_EQ(
      status_of_abort("Abort(256) on node 0 (rank 0 in comm 0): application called MPI_Abort("), 1);
}

TEST(StatusOfAbort, IsInNoOthers) {
  for (const char* const words :
       {"", "Abort(7)", "Abort(7) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Send",
        "Abort(x) on node 0 (rank 0 in comm 0): application called MPI_Abort(",
        "on node 0 (rank 0 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7)"}) {
    EXPECT_EQ(status_of_abort(words), std::nullopt) << words;
  }
}

}  // namespace
}  // namespace hora::launch
