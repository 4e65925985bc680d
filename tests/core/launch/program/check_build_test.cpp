#include "core/launch/program/check_build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const MpiInstallation kMpi{MpiFlavour::open_mpi_4, "4.1.4", "/usr/bin/mpirun", ""};

BuildFacts with_cuda() {
  return {
      .version = "0.1.0", .mpi = "Open MPI 4", .torch = "1.13.1", .cuda = "12.4", .nccl = "2.19.3"};
}

TEST(CheckBuild, SaysWhatThereIs) {
  const std::string text =
      check_build_text(with_cuda(), {.mpirun = kMpi,
                                     .mpi_library = "Open MPI v4.1.4, MPI_THREAD_MULTIPLE",
                                     .cuda_driver = "12.6",
                                     .nccl = "2.21.5",
                                     .vectors = "AVX2"});
  EXPECT_EQ(text,
            "hora      0.1.0\n"
            "MPI       built with Open MPI 4; started by /usr/bin/mpirun (Open MPI 4.1.4)\n"
            "          its library: Open MPI v4.1.4, MPI_THREAD_MULTIPLE\n"
            "LibTorch  1.13.1\n"
            "CUDA      built with 12.4; the driver supports 12.6\n"
            "NCCL      built with 2.19.3; loaded is 2.21.5\n"
            "vectors   AVX2\n");
}

TEST(CheckBuild, SaysWhatIsMissingAndHowToGetIt) {
  const tl::unexpected<std::string> missing("not found");
  const std::string text = check_build_text(
      {.version = "0.1.0", .mpi = "MPICH 4"},
      {.mpirun = tl::unexpected<std::string>("no mpirun was found"), .mpi_library = missing});
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("no mpirun was found"), HasSubstr("cannot be used: not found; install it"),
            HasSubstr("LibTorch  no: configure with -DHORA_TORCH=ON"),
            HasSubstr("CUDA      no: cmake --preset cuda"), HasSubstr("NCCL      no")));
  EXPECT_THAT(check_build_text(
                  with_cuda(),
                  {.mpirun = kMpi, .mpi_library = "x", .cuda_driver = missing, .nccl = missing}),
              AllOf(HasSubstr("no driver: not found; install NVIDIA's driver"),
                    HasSubstr("cannot be loaded: not found; install libnccl2")));
}

TEST(CheckBuild, SaysThatMpirunIsAnotherMpis) {
  BuildFacts mpich = with_cuda();
  mpich.mpi = "MPICH 4";
  EXPECT_THAT(check_build_text(mpich, {.mpirun = kMpi, .mpi_library = "x"}),
              HasSubstr("(Open MPI 4.1.4), which starts other programs: name the mpirun of MPICH 4 "
                        "with --mpirun"));
}

TEST(CheckBuild, SaysThatAThreadLevelIsTooLow) {
  const auto text = [](const char* library) {
    return check_build_text(with_cuda(), {.mpirun = kMpi, .mpi_library = library});
  };
  EXPECT_THAT(text("MPICH, MPI_THREAD_FUNNELED"), HasSubstr("too little"));
  EXPECT_THAT(text("MPICH, MPI_THREAD_SINGLE"), HasSubstr("too little"));
  EXPECT_THAT(text("MPICH, MPI_THREAD_SERIALIZED"), Not(HasSubstr("too little")));
}

TEST(CheckBuild, ThisBuildHasAVersion) {
  EXPECT_EQ(this_build().version, HORA_VERSION);
  EXPECT_FALSE(this_build().mpi.empty());
  EXPECT_FALSE(this_build().mpi_files.empty());
  EXPECT_FALSE(vector_instructions().empty());
}

}  // namespace
}  // namespace hora::launch
