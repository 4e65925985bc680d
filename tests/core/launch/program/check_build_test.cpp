// horarun --check-build, asked from outside; and the real libraries, by its own process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/launch/control/system.h"
#include "tests/core/launch/options/parsed.h"

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string printed(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), HORARUN);
  const auto output = captured_output(arguments, std::chrono::seconds(60));
  return output ? output->text : output.error();
}

TEST(CheckBuild, SaysWhatThereIsAndWhatIsMissing) {
  const std::string text = printed({"--check-build"});
  EXPECT_THAT(text, AllOf(StartsWith("hora      " HORA_VERSION "\nMPI       built with "),
                          HasSubstr("; started by /"), HasSubstr("\n          its library: "),
                          HasSubstr(", MPI_THREAD_"), HasSubstr("\nLibTorch  "),
                          HasSubstr("\nCUDA      "), HasSubstr("\nNCCL      "),
                          HasSubstr("\nvectors   "), Not(HasSubstr("too little"))));
  EXPECT_THAT(printed({"--check-build", "--mpirun", "/no/mpirun"}),
              HasSubstr("--mpirun \"/no/mpirun\": there is no such program"));
}

TEST(CheckBuild, SaysThatMpirunIsAnotherMpis) {
  const internal::test::TemporaryFolder folder;
  const auto text = [&](const char* words) {
    const std::string mpirun =
        test::written(folder, "mpirun", std::string("#!/bin/sh\necho '") + words + "'\n");
    std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
    return printed({"--check-build", "--mpirun", mpirun});
  };
  const std::string hydra = text("HYDRA build details:\nVersion: 4.0.2");
  const std::string open_mpi = text("mpirun (Open MPI) 4.1.4");
  EXPECT_THAT(hydra, HasSubstr("mpirun (MPICH 4.0.2)"));
  EXPECT_THAT(open_mpi, HasSubstr("mpirun (Open MPI 4.1.4)"));
  const auto is_other = HasSubstr(", which starts other programs: name the mpirun of ");
  const bool built_with_mpich = hydra.find("which starts other") == std::string::npos;
  EXPECT_THAT(built_with_mpich ? open_mpi : hydra, is_other);
  EXPECT_THAT(built_with_mpich ? hydra : open_mpi, Not(is_other));
}

TEST(LibraryQuery, SaysWhatIsMissing) {
  EXPECT_THAT(
      printed({"--query-library", "mpi", "/no/libmpi.so", "libnone.so.7"}),
      AllOf(HasSubstr("horarun-failure: "), HasSubstr("/no/libmpi.so"), HasSubstr("libnone.so.7")));
  EXPECT_THAT(printed({"--query-library", "mpi", "libm.so.6"}),
              HasSubstr("it has no function MPI_"));
  EXPECT_THAT(printed({"--query-library", "nccl", "/no/libnccl.so", "libm.so.6"}),
              HasSubstr("it has no function ncclGetVersion"));
  EXPECT_THAT(printed({"--query-library"}), HasSubstr("horarun --check-build alone"));
}

}  // namespace
}  // namespace hora::launch
