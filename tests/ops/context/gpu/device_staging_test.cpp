#include "ops/context/gpu/device_staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ops/cuda/functions.h"

namespace hora::internal {
namespace {

using testing::HasSubstr;
using enum CudaSupport;

DeviceStagingChoice choose(CudaAwareMpi setting, const std::vector<CudaSupport>& by_rank,
                           int nodes = 2) {
  return choose_device_staging(setting, by_rank, nodes);
}

TEST(DeviceStagingChoice, AutomaticWhereEveryRankSaysYes) {
  const auto choice = choose(CudaAwareMpi::automatic, {yes, yes, yes});
  EXPECT_TRUE(choice.on_device);
  EXPECT_FALSE(choice.doubtful);
  EXPECT_THAT(choice.reason, HasSubstr("straight into MPI"));
}

TEST(DeviceStagingChoice, AutomaticNamesTheRankThatDoesNot) {
  const auto no_rank = choose(CudaAwareMpi::automatic, {yes, yes, no, unknown});
  EXPECT_FALSE(no_rank.on_device);
  EXPECT_THAT(no_rank.reason, HasSubstr("pinned host memory: MPI on rank 2 says"));
  const auto unknown_rank = choose(CudaAwareMpi::automatic, {yes, unknown});
  EXPECT_FALSE(unknown_rank.on_device);
  EXPECT_THAT(unknown_rank.reason, HasSubstr("rank 1 cannot be asked"));
}

TEST(DeviceStagingChoice, OnIsBelievedButDoubtedAloud) {
  const auto sure = choose(CudaAwareMpi::on, {yes, yes});
  EXPECT_TRUE(sure.on_device);
  EXPECT_FALSE(sure.doubtful);
  const auto doubtful = choose(CudaAwareMpi::on, {yes, no});
  EXPECT_TRUE(doubtful.on_device);
  EXPECT_TRUE(doubtful.doubtful);
  EXPECT_THAT(doubtful.reason, HasSubstr("though MPI on rank 1 says that it takes no GPU memory"));
}

TEST(DeviceStagingChoice, OffIsOff) {
  const auto choice = choose(CudaAwareMpi::off, {yes, yes});
  EXPECT_FALSE(choice.on_device);
  EXPECT_THAT(choice.reason, HasSubstr("HORA_CUDA_AWARE_MPI=off"));
}

TEST(DeviceStagingChoice, NotForMoreNodesThanTheKernelSums) {
  constexpr auto kMost = static_cast<int>(DeviceReduction::kMaximumInputs);
  for (const auto setting : {CudaAwareMpi::automatic, CudaAwareMpi::on}) {
    EXPECT_TRUE(choose(setting, {yes}, kMost).on_device);
    EXPECT_FALSE(choose(setting, {yes}, kMost + 1).on_device);
  }
}

}  // namespace
}  // namespace hora::internal
