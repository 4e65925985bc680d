#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "ops/mpi/environment.h"

namespace hora::internal {
namespace {

using testing::HasSubstr;

TEST(MpiImplementation, FamiliesDoNotMixAndOfUnknownOnesNothingIsSaid) {
  const std::string mpich = "MPICH 4.0.2", open = "Open MPI 4.1.4";
  EXPECT_NE(running_mpi(), "");
  const struct {
    std::string compiled, running, text;  ///< empty: they fit
  } kPairs[] = {
      {compiled_mpi(), running_mpi(), ""},
      {mpich, "Open MPI v4.1.4", "compiled for MPICH 4.0.2"},
      {mpich, "Open MPI v4.1.4", "loaded Open MPI v4.1.4"},
      {open, "MPICH Version: 4.0.2", "MPICH"},
      {"Open MPI 5.0.11", "Open MPI v4.1.4", "Open MPI"},
      {mpich, "MPICH Version: 3.4.1", ""},
      {mpich, "Intel(R) MPI Library 2021.8 for Linux* OS", ""},
      {mpich, "MVAPICH2 Version: 2.3", ""},
      {mpich, "MPI VERSION    : CRAY MPICH version 8.1.9", ""},
      {open, "Open MPI v5.0.11", ""},
      {open, "Open MPI v4.0.1", ""},
      {"", "Open MPI v4.1.4", ""},
      {mpich, "another MPI 1.0", ""},
  };
  for (const auto& [compiled, running, text] : kPairs) {
    const auto mismatch = library_mismatch(compiled, running);
    EXPECT_EQ(mismatch.has_value(), !text.empty()) << compiled << " and " << running;
    EXPECT_THAT(mismatch.value_or(""), HasSubstr(text));
  }
}

// The innermost launcher counts; a batch script is no step, and what is no number is ignored.
TEST(LauncherMismatch, NamesTheLauncherAndWhatToDo) {
  using Variables = std::map<std::string, std::string>;
  const Variables srun{{"SLURM_STEP_NUM_TASKS", "8"}};
  const Variables of_4{{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_MCA_orte_launch", "1"}};
  const Variables of_5{{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_VERSION", "5.0.11"}};
  const std::string mpich = "MPICH Version: 4.0.2", open_4 = "Open MPI v4.1.4",
                    open_5 = "Open MPI v5.0.11";
  const struct {
    int world_size;
    Variables variables;
    std::string library;
    std::vector<const char*> parts;  ///< none: no mismatch
  } kCases[] = {
      {1, {}, mpich, {}},
      {1, {{"OMPI_COMM_WORLD_SIZE", "1"}}, mpich, {}},
      {4, {{"OMPI_COMM_WORLD_SIZE", "4"}}, mpich, {}},
      {2, {{"PMI_SIZE", "2"}}, mpich, {}},
      {1,
       {{"OMPI_COMM_WORLD_SIZE", "4"}},
       mpich,
       {"Open MPI", "OMPI_COMM_WORLD_SIZE=4", "MPI_COMM_WORLD has one"}},
      {1, {{"PMI_SIZE", "2"}}, mpich, {"PMI_SIZE=2"}},
      {1, srun, open_4, {"Slurm's srun", "srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"}},
      {1, of_5, mpich, {"mpirun 5.0.11 started 2", "MPICH Version: 4.0.2"}},
      {1, of_4, mpich, {"mpirun of version 4 or earlier started 2"}},
      {2, of_4, open_5, {"has loaded Open MPI v5.0.11", "of version 4 or earlier started it"}},
      {2, of_4, open_4, {}},
      {2, of_5, open_5, {}},
      {1, {{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}, mpich, {}},
      {1, {{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "17"}}, mpich, {}},
      {1, {{"PMI_SIZE", ""}}, mpich, {}},
      {1, {{"PMI_SIZE", "2x"}}, mpich, {}},
  };
  for (const auto& [world_size, variables, library, parts] : kCases) {
    const auto text = launcher_mismatch(
        world_size, library, [&known = variables](const char* name) -> const char* {
          const auto found = known.find(name);
          return found == known.end() ? nullptr : found->second.c_str();
        });
    EXPECT_EQ(text.has_value(), !parts.empty()) << text.value_or("");
    for (const char* part : parts) EXPECT_THAT(text.value_or(""), HasSubstr(part));
  }
}

}  // namespace
}  // namespace hora::internal
