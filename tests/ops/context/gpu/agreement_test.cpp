// Ranks as processes, each with a fake GPU of its own world, so that all have the same bus id.
#include "ops/context/gpu/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <numeric>

#include "ops/mpi/cuda_support.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace hora {
namespace {

class GpuAgreement : public testing::Test {
 protected:
  Topology one_node() const {
    Topology topology;
    topology.ranks_of_node.emplace_back(static_cast<std::size_t>(world_.size()));
    std::iota(topology.ranks_of_node[0].begin(), topology.ranks_of_node[0].end(), 0);
    return topology;
  }
  Topology nodes_of_one() const {
    Topology topology;
    for (int rank = 0; rank < world_.size(); ++rank) topology.ranks_of_node.push_back({rank});
    return topology;
  }

  Communicator world_ = Communicator::world();
  test::FakeNcclWorld nccl_;
  test::FakeGpu gpu_{nccl_};
};

TEST_F(GpuAgreement, RanksOfANodeOnOneGpuAreRefusedEverywhere) {
  test::expect_error(ErrorCode::invalid_use,
                     testing::AllOf(testing::HasSubstr("ranks 0"),
                                    testing::HasSubstr("share the GPU 0000:01:00.0")),
                     [&] { check_gpus(gpu_.cuda(), world_, one_node(), 0); });
}

TEST_F(GpuAgreement, NodesOfOneRankMayShareTheGpu) {
  EXPECT_NO_THROW(check_gpus(gpu_.cuda(), world_, nodes_of_one(), 0));
}

TEST_F(GpuAgreement, AllRanksDecideAlikeWhereDataLies) {
  Settings settings;
  settings.cuda_aware_mpi = CudaAwareMpi::off;
  EXPECT_FALSE(agree_on_device_staging(world_, settings, 2));
  settings.cuda_aware_mpi = CudaAwareMpi::on;
  EXPECT_TRUE(agree_on_device_staging(world_, settings, 2));
  EXPECT_FALSE(agree_on_device_staging(world_, settings, 1)) << "nothing travels between nodes";
  settings.cuda_aware_mpi = CudaAwareMpi::automatic;
  EXPECT_EQ(agree_on_device_staging(world_, settings, 2), mpi_cuda_support() == CudaSupport::yes);
}

}  // namespace
}  // namespace hora
