#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "ops/mpi/environment.h"
#include "tests/support/golden.h"

namespace hora::internal {
namespace {

constexpr const char* kMpiTexts = "ops/mpi/texts.txt";

TEST(MpiImplementation, FamiliesDoNotMixAndOfUnknownOnesNothingIsSaid) {
  const std::string mpich = "MPICH 4.0.2", open = "Open MPI 4.1.4";
  EXPECT_NE(running_mpi(), "");
  EXPECT_EQ(library_mismatch(compiled_mpi(), running_mpi()), std::nullopt);
  const std::pair<std::string, const char*> kPairs[] = {
      {mpich, "Open MPI v4.1.4"},
      {open, "MPICH Version: 4.0.2"},
      {"Open MPI 5.0.11", "Open MPI v4.1.4"},
      {mpich, "MPICH Version: 3.4.1"},
      {mpich, "Intel(R) MPI Library 2021.8 for Linux* OS"},
      {mpich, "MVAPICH2 Version: 2.3"},
      {mpich, "MPI VERSION    : CRAY MPICH version 8.1.9"},
      {open, "Open MPI v5.0.11"},
      {open, "Open MPI v4.0.1"},
      {"", "Open MPI v4.1.4"},
      {mpich, "another MPI 1.0"},
  };
  std::string texts;
  for (const auto& [compiled, running] : kPairs) {
    texts += library_mismatch(compiled, running).value_or("they fit") + "\n";
  }
  test::expect_golden(kMpiTexts, "libraries", texts);
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
  } kCases[] = {
      {1, {}, mpich},
      {1, {{"OMPI_COMM_WORLD_SIZE", "1"}}, mpich},
      {4, {{"OMPI_COMM_WORLD_SIZE", "4"}}, mpich},
      {2, {{"PMI_SIZE", "2"}}, mpich},
      {1, {{"OMPI_COMM_WORLD_SIZE", "4"}}, mpich},
      {1, {{"PMI_SIZE", "2"}}, mpich},
      {1, srun, open_4},
      {1, of_5, mpich},
      {1, of_4, mpich},
      {2, of_4, open_5},
      {2, of_4, open_4},
      {2, of_5, open_5},
      {1, {{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}, mpich},
      {1, {{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "17"}}, mpich},
      {1, {{"PMI_SIZE", ""}}, mpich},
      {1, {{"PMI_SIZE", "2x"}}, mpich},
  };
  std::string texts;
  for (const auto& [world_size, variables, library] : kCases) {
    const auto text = launcher_mismatch(
        world_size, library, [&known = variables](const char* name) -> const char* {
          const auto found = known.find(name);
          return found == known.end() ? nullptr : found->second.c_str();
        });
    texts += text.value_or("they fit") + "\n";
  }
  test::expect_golden(kMpiTexts, "launchers", texts);
}

}  // namespace
}  // namespace hora::internal
