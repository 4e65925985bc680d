#include "core/launch/program/check_build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::launch {
namespace {

using testing::HasSubstr;

TEST(CheckBuild, SaysWhatThereIs) {
  const MpiInstallation mpi{MpiFlavour::open_mpi_4, "4.1.4", "/usr/bin/mpirun", ""};
  const std::string text = check_build_text(
      {.version = "0.1.0", .mpi = "Open MPI 4", .torch = "1.13.1", .cuda = true}, mpi, "AVX2");
  EXPECT_THAT(text, HasSubstr("hora      0.1.0\n"));
  EXPECT_THAT(text, HasSubstr("built with Open MPI 4; started by /usr/bin/mpirun (Open MPI"));
  EXPECT_THAT(text, HasSubstr("LibTorch  1.13.1\n"));
  EXPECT_THAT(text, HasSubstr("CUDA      yes"));
  EXPECT_THAT(text, HasSubstr("vectors   AVX2\n"));
}

TEST(CheckBuild, SaysWhatIsMissingAndHowToGetIt) {
  const std::string text = check_build_text({.version = "0.1.0", .mpi = "MPICH", .torch = {}},
                                            tl::unexpected<std::string>("no mpirun was found"), "");
  EXPECT_THAT(text, HasSubstr("no mpirun was found"));
  EXPECT_THAT(text, HasSubstr("LibTorch  no: configure with -DHORA_TORCH=ON"));
  EXPECT_THAT(text, HasSubstr("CUDA      no: cmake --preset cuda"));
}

TEST(CheckBuild, ThisBuildHasAVersion) {
  EXPECT_EQ(this_build().version, HORA_VERSION);
  EXPECT_FALSE(this_build().mpi.empty());
  EXPECT_FALSE(vector_instructions().empty());
}

}  // namespace
}  // namespace hora::launch
