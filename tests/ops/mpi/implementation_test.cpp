#include "ops/mpi/implementation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(MpiImplementation, ThisBuildRunsWithWhatItWasCompiledFor) {
  EXPECT_NE(running_mpi(), "");
  EXPECT_EQ(library_mismatch(compiled_mpi(), running_mpi()), std::nullopt)
      << compiled_mpi() << " and " << running_mpi();
}

TEST(MpiImplementation, FamiliesDoNotMix) {
  EXPECT_THAT(library_mismatch("MPICH 4.0.2", "Open MPI v4.1.4").value_or(""),
              AllOf(HasSubstr("compiled for MPICH 4.0.2"), HasSubstr("loaded Open MPI v4.1.4")));
  EXPECT_NE(library_mismatch("Open MPI 4.1.4", "MPICH Version: 4.0.2"), std::nullopt);
  EXPECT_NE(library_mismatch("Open MPI 5.0.11", "Open MPI v4.1.4"), std::nullopt);
}

TEST(MpiImplementation, RelativesAndLaterVersionsFit) {
  for (const char* running :
       {"MPICH Version: 3.4.1", "Intel(R) MPI Library 2021.8 for Linux* OS",
        "MVAPICH2 Version: 2.3", "MPI VERSION    : CRAY MPICH version 8.1.9"}) {
    EXPECT_EQ(library_mismatch("MPICH 4.0.2", running), std::nullopt) << running;
  }
  EXPECT_EQ(library_mismatch("Open MPI 4.1.4", "Open MPI v5.0.11"), std::nullopt);
  EXPECT_EQ(library_mismatch("Open MPI 4.1.4", "Open MPI v4.0.1"), std::nullopt);
}

TEST(MpiImplementation, OfUnknownOnesNothingIsSaid) {
  EXPECT_EQ(library_mismatch("", "Open MPI v4.1.4"), std::nullopt);
  EXPECT_EQ(library_mismatch("MPICH 4.0.2", "another MPI 1.0"), std::nullopt);
}

}  // namespace
}  // namespace hora
