// Ranks as threads, each with a fake GPU of its own world, so that all have the same bus id.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <numeric>

#include "ops/context/gpu/node_gpus.h"
#include "ops/mpi/environment.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/threads/thread_bootstrap.h"

namespace hora::internal {
namespace {

class GpuAgreement : public testing::TestWithParam<int> {
 protected:
  std::vector<int> hosts() const { return std::vector<int>(static_cast<std::size_t>(ranks_), 0); }
  Topology one_node() const {
    Topology topology;
    topology.ranks_of_node.emplace_back(static_cast<std::size_t>(ranks_));
    std::iota(topology.ranks_of_node[0].begin(), topology.ranks_of_node[0].end(), 0);
    return topology;
  }
  Topology nodes_of_one() const {
    Topology topology;
    for (int rank = 0; rank < ranks_; ++rank) topology.ranks_of_node.push_back({rank});
    return topology;
  }

  int ranks_ = GetParam();
};

TEST_P(GpuAgreement, RanksOfANodeOnOneGpuAreRefusedEverywhere) {
  test::run_ranks(hosts(), [&](Bootstrap& world) {
    test::FakeNcclWorld nccl;
    test::FakeGpu gpu(nccl);
    test::expect_error(ErrorCode::invalid_use,
                       testing::AllOf(testing::HasSubstr("ranks 0"),
                                      testing::HasSubstr("share the GPU 0000:01:00.0")),
                       [&] { check_gpus(gpu.cuda(), world, one_node(), 0); });
  });
}

TEST_P(GpuAgreement, NodesOfOneRankMayShareTheGpu) {
  test::run_ranks(hosts(), [&](Bootstrap& world) {
    test::FakeNcclWorld nccl;
    test::FakeGpu gpu(nccl);
    const Topology topology = nodes_of_one();
    const auto by_rank = check_gpus(gpu.cuda(), world, topology, 0);
    ASSERT_EQ(by_rank.size(), static_cast<std::size_t>(ranks_));
    EXPECT_NO_THROW(report_links(gpu.cuda(), world, topology, 0, by_rank));
  });
}

TEST_P(GpuAgreement, AllRanksDecideAlikeWhereDataLies) {
  test::run_ranks(hosts(), [&](Bootstrap& world) {
    Settings settings;
    settings.cuda_aware_mpi = CudaAwareMpi::off;
    EXPECT_FALSE(agree_on_device_staging(world, CudaSupport::yes, settings, 2));
    settings.cuda_aware_mpi = CudaAwareMpi::on;
    EXPECT_TRUE(agree_on_device_staging(world, CudaSupport::no, settings, 2));
    EXPECT_FALSE(agree_on_device_staging(world, CudaSupport::yes, settings, 1))
        << "nothing travels between nodes";
    settings.cuda_aware_mpi = CudaAwareMpi::automatic;
    EXPECT_TRUE(agree_on_device_staging(world, CudaSupport::yes, settings, 2));
    const auto own = world.rank() == world.size() - 1 ? CudaSupport::no : CudaSupport::yes;
    EXPECT_FALSE(agree_on_device_staging(world, own, settings, 2)) << "one says no";
  });
}

std::vector<GpuIdentity> gpus_apart(int ranks) {
  std::vector<GpuIdentity> gpus;
  for (int rank = 0; rank < ranks; ++rank) {
    gpus.push_back({.host = "alpha", .nccl_host = {}, .bus_id = "1", .uuid = std::to_string(rank)});
  }
  return gpus;
}

TEST_P(GpuAgreement, AllRanksDecideAlikeByWhichNetwork) {
  test::run_ranks(hosts(), [&](Bootstrap& world) {
    using enum GpuNetwork;
    const auto gpus = gpus_apart(ranks_);
    const NcclNetwork sockets{.name = {}, .reason = "NCCL_IB_DISABLE=1"};
    const NcclNetwork fast{.name = "InfiniBand or RoCE", .reason = "mlx5_0 port 1 is active"};
    EXPECT_FALSE(agree_on_gpu_network(world, fast, mpi, 2, gpus));
    EXPECT_TRUE(agree_on_gpu_network(world, sockets, nccl, 2, gpus));
    EXPECT_FALSE(agree_on_gpu_network(world, fast, nccl, 1, gpus)) << "nothing is between nodes";
    EXPECT_TRUE(agree_on_gpu_network(world, fast, automatic, 2, gpus));
    const NcclNetwork& own = world.rank() == world.size() - 1 ? sockets : fast;
    EXPECT_FALSE(agree_on_gpu_network(world, own, automatic, 2, gpus)) << "one has sockets";
  });
}

TEST_P(GpuAgreement, OneCommunicatorOverNodesTakesOneRankAGpu) {
  test::run_ranks(hosts(), [&](Bootstrap& world) {
    auto gpus = gpus_apart(ranks_);
    gpus.back().uuid = gpus.front().uuid;
    const NcclNetwork fast{.name = "InfiniBand or RoCE", .reason = "mlx5_0 port 1 is active"};
    EXPECT_FALSE(agree_on_gpu_network(world, fast, GpuNetwork::automatic, 2, gpus));
    test::expect_error(ErrorCode::invalid_use,
                       testing::AllOf(testing::HasSubstr("HORA_GPU_NETWORK=nccl: ranks 0 and"),
                                      testing::HasSubstr("share the GPU 1 (0)")),
                       [&] { agree_on_gpu_network(world, fast, GpuNetwork::nccl, 2, gpus); });
  });
}

INSTANTIATE_TEST_SUITE_P(, GpuAgreement, testing::Values(2, 3));

}  // namespace
}  // namespace hora::internal
