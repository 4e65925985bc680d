#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "ops/mpi/environment.h"

namespace hora::internal {
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

std::optional<std::string> check(int world_size, std::map<std::string, std::string> environment,
                                 const std::string& library = "MPICH Version: 4.0.2") {
  return launcher_mismatch(world_size, library, [&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(LauncherMismatch, NoLauncherIsOneProcess) {
  EXPECT_EQ(check(1, {}), std::nullopt);
}

TEST(LauncherMismatch, AgreementIsNoMismatch) {
  EXPECT_EQ(check(1, {{"OMPI_COMM_WORLD_SIZE", "1"}}), std::nullopt);
  EXPECT_EQ(check(4, {{"OMPI_COMM_WORLD_SIZE", "4"}}), std::nullopt);
  EXPECT_EQ(check(2, {{"PMI_SIZE", "2"}}), std::nullopt);
}

TEST(LauncherMismatch, NamesTheLauncherAndItsNumber) {
  EXPECT_THAT(check(1, {{"OMPI_COMM_WORLD_SIZE", "4"}}).value_or(""),
              testing::AllOf(HasSubstr("Open MPI"), HasSubstr("OMPI_COMM_WORLD_SIZE=4"),
                             HasSubstr("MPI_COMM_WORLD has one")));
  EXPECT_THAT(check(1, {{"PMI_SIZE", "2"}}).value_or(""), HasSubstr("PMI_SIZE=2"));
  EXPECT_THAT(check(1, {{"SLURM_STEP_NUM_TASKS", "8"}}).value_or(""), HasSubstr("srun"));
}

TEST(LauncherMismatch, NamesThePmiThatTheLibrarySpeaks) {
  const std::map<std::string, std::string> of_srun{{"SLURM_STEP_NUM_TASKS", "8"}};
  for (const char* library : {"Open MPI v4.1.4", "Open MPI v5.0.11"}) {
    EXPECT_THAT(check(1, of_srun, library).value_or(""), HasSubstr("srun --mpi=pmix")) << library;
  }
  for (const char* library : {"MPICH Version: 4.0.2", "MVAPICH2 Version: 2.3"}) {
    EXPECT_THAT(check(1, of_srun, library).value_or(""), HasSubstr("srun --mpi=pmi2")) << library;
  }
  EXPECT_THAT(check(1, of_srun, "another MPI 1.0").value_or(""), HasSubstr("srun --mpi=list"));
  EXPECT_THAT(check(1, {{"PMI_SIZE", "2"}}).value_or(""), testing::Not(HasSubstr("srun")));
}

TEST(LauncherMismatch, NamesBothVersions) {
  EXPECT_THAT(
      check(1, {{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_VERSION", "5.0.11"}}).value_or(""),
      testing::AllOf(HasSubstr("mpirun 5.0.11 started 2"), HasSubstr("MPICH Version: 4.0.2")));
  EXPECT_THAT(check(1, {{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_MCA_orte_launch", "1"}}).value_or(""),
              testing::AllOf(HasSubstr("mpirun of version 4 or earlier started 2"),
                             HasSubstr("MPICH Version: 4.0.2")));
}

TEST(LauncherMismatch, AnOpenMpi5WantsItsOwnMpirun) {
  const std::map<std::string, std::string> of_4{{"OMPI_COMM_WORLD_SIZE", "2"},
                                                {"OMPI_MCA_orte_launch", "1"}};
  EXPECT_THAT(check(2, of_4, "Open MPI v5.0.11").value_or(""),
              testing::AllOf(HasSubstr("has loaded Open MPI v5.0.11"),
                             HasSubstr("mpirun of version 4 or earlier started it")));
  EXPECT_EQ(check(2, of_4, "Open MPI v4.1.4"), std::nullopt);
  EXPECT_EQ(
      check(2, {{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_VERSION", "5.0.11"}}, "Open MPI v5.0.11"),
      std::nullopt);
}

TEST(LauncherMismatch, TheInnerLauncherCounts) {
  EXPECT_EQ(check(1, {{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}), std::nullopt);
}

TEST(LauncherMismatch, ABatchScriptIsNoStep) {
  EXPECT_EQ(check(1, {{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "17"}}), std::nullopt);
}

TEST(LauncherMismatch, IgnoresWhatIsNoNumber) {
  EXPECT_EQ(check(1, {{"PMI_SIZE", ""}}), std::nullopt);
  EXPECT_EQ(check(1, {{"PMI_SIZE", "2x"}}), std::nullopt);
}

}  // namespace
}  // namespace hora::internal
