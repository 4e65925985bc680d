#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <map>
#include <string>
#include <vector>

#include "ops/context/gpu.h"
#include "ops/cuda/functions.h"
#include "ops/mpi/environment.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/threads/thread_bootstrap.h"

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(DeviceStagingChoice, FollowsTheSettingAndMpi) {
  using enum CudaSupport;
  using enum CudaAwareMpi;
  constexpr auto kMost = static_cast<int>(DeviceReduction::kMaximumInputs);
  const struct {
    CudaAwareMpi setting;
    std::vector<CudaSupport> by_rank;
    int nodes;
    bool taken, doubtful;
    const char* reason;
  } kCases[] = {
      {automatic, {yes, yes, yes}, 2, true, false, "straight into MPI"},
      {automatic, {yes, no, unknown}, 2, false, false, "memory: MPI on rank 1 says"},
      {automatic, {yes, unknown}, 2, false, false, "rank 1 cannot be asked"},
      {on, {yes, yes}, 2, true, false, ""},
      {on, {yes, no}, 2, true, true, "MPI on rank 1 says that it takes no GPU memory"},
      {off, {yes, yes}, 2, false, false, "HORA_CUDA_AWARE_MPI=off"},
      {automatic, {yes}, kMost, true, false, ""},
      {on, {yes}, kMost, true, false, ""},
      {automatic, {yes}, kMost + 1, false, false, ""},
      {on, {yes}, kMost + 1, false, false, ""},
  };
  for (const auto& tested : kCases) {
    const auto choice = choose_device_staging(tested.setting, tested.by_rank, tested.nodes);
    EXPECT_EQ(choice.taken, tested.taken) << choice.reason;
    EXPECT_EQ(choice.doubtful, tested.doubtful) << choice.reason;
    EXPECT_THAT(choice.reason, HasSubstr(tested.reason));
  }
}

TEST(NcclNetwork, IsThatWhichNcclTakes) {
  const std::string fast = "InfiniBand or RoCE";
  const struct {
    const char *net, *plugin, *ib_disable;
    bool has_ports;
    std::string name;
    const char* reason;
  } kCases[] = {
      {"", "", "", false, "", "no port is active in /sys/class/infiniband"},
      {"IB", "", "", false, "", ""},
      {"", "", "", true, fast, "mlx5_0 port 1 is active"},
      {"", "", "0", true, fast, ""},
      {"", "", "1", true, "", "NCCL_IB_DISABLE=1"},
      {"", "", "2", true, "", "NCCL_IB_DISABLE=2"},
      {"Socket", "", "", true, "", ""},
      {"socket", "", "", true, "", ""},
      {"ib", "", "", true, fast, ""},
      {"AWS Libfabric", "", "", false, "AWS Libfabric", "NCCL_NET=AWS Libfabric"},
      {"", "ofi", "1", true, "the plugin ofi", "NCCL_NET_PLUGIN=ofi"},
      {"IB", "ofi", "", true, fast, ""},
      {"", "none", "", true, fast, ""},
  };
  for (const auto& tested : kCases) {
    const std::map<std::string, const char*> variables{{"NCCL_NET", tested.net},
                                                       {"NCCL_NET_PLUGIN", tested.plugin},
                                                       {"NCCL_IB_DISABLE", tested.ib_disable}};
    std::vector<std::string> ports;
    if (tested.has_ports) ports = {"mlx5_0 port 1", "mlx5_1 port 1"};
    const NcclNetwork network =
        network_of([&](const char* name) { return variables.at(name); }, ports);
    EXPECT_EQ(network.name, tested.name) << &tested - kCases;
    EXPECT_THAT(network.reason, HasSubstr(tested.reason)) << &tested - kCases;
  }
}

const NcclNetwork kFast{.name = "InfiniBand or RoCE", .reason = "mlx5_0 port 1 is active"};
const NcclNetwork kSockets{.name = {}, .reason = "no port is active"};

TEST(GpuNetworkChoice, FollowsTheSettingAndTheRanksNetworks) {
  using enum GpuNetwork;
  const NcclNetwork other{.name = "other", .reason = "NCCL_NET=other"};
  const struct {
    GpuNetwork setting;
    std::vector<NcclNetwork> by_rank;
    const char* shared;
    bool taken;
    const char* reason;
  } kCases[] = {
      {automatic, {kFast, kFast}, "", true, "InfiniBand or RoCE (mlx5_0 port 1 is active) on rank"},
      {automatic,
       {kFast, kFast, kSockets, kSockets},
       "",
       false,
       "through MPI: on rank 2 NCCL has sockets alone (no port is active"},
      {automatic, {kSockets, kFast}, "", false, "HORA_GPU_NETWORK=nccl overrides that"},
      {automatic, {kFast, other}, "", false, "on rank 1 NCCL has other (NCCL_NET=other), and on"},
      {automatic, {kFast, kFast}, "ranks share", false, "through MPI: ranks share"},
      {mpi, {kFast, kFast}, "", false, "HORA_GPU_NETWORK=mpi"},
      {nccl, {kSockets, kFast}, "", true, "HORA_GPU_NETWORK=nccl"},
      {nccl, {kSockets, kFast}, "", true, "sockets alone"},
  };
  for (const auto& tested : kCases) {
    const auto choice = choose_gpu_network(tested.setting, tested.by_rank, tested.shared);
    EXPECT_EQ(choice.taken, tested.taken) << choice.reason;
    EXPECT_THAT(choice.reason, HasSubstr(tested.reason));
  }
}

GpuIdentity gpu(const std::string& bus_id, const std::string& uuid,
                const std::string& nccl_host = "", bool shares = false) {
  return {
      .host = "alpha", .nccl_host = nccl_host, .bus_id = bus_id, .uuid = uuid, .shares = shares};
}

TEST(GpuIdentity, TellsDevicesApartAlsoOnOtherRanks) {
  test::FakeNcclWorld world;
  const test::FakeGpu first(world);
  const test::FakeGpu second(world);
  const GpuIdentity one = gpu_identity(first.cuda(), 0);
  const GpuIdentity other = gpu_identity(second.cuda(), 1);
  EXPECT_EQ(one.bus_id, "0000:01:00.0");
  EXPECT_EQ(one.uuid, "01000000-0000-0000-0000-000000000000");
  EXPECT_NE(one.uuid, other.uuid);
  EXPECT_EQ(one.host, other.host);
  EXPECT_FALSE(one.host.empty());
  for (const auto& identity : {gpu("0000:17:00.0", "u", "host1"), gpu("1", "u", "", true)}) {
    EXPECT_EQ(gpu_from_lines(to_lines(identity)), identity);
  }
}

TEST(SharedGpu, IsWhatNcclRefuses) {
  const Topology node{{{0, 1, 2}}};
  const Topology nodes_of_one{{{0}, {1}, {2}}};
  EXPECT_EQ(shared_gpu({gpu("1", "a"), gpu("2", "b"), gpu("3", "c")}, node), "");
  const std::string text = shared_gpu({gpu("1", "a"), gpu("2", "b"), gpu("1", "a")}, node);
  EXPECT_THAT(text, AllOf(HasSubstr("ranks 0 and 2"), HasSubstr("host alpha"),
                          HasSubstr("share the GPU 1 (a)"), HasSubstr("start fewer ranks"),
                          HasSubstr("HORA_RANKS_PER_NODE=1"), HasSubstr("NCCL_HOSTID")));
  const std::vector<GpuIdentity> all(3, gpu("1", "a"));
  EXPECT_THAT(shared_gpu(all, node), HasSubstr("ranks 0, 1 and 2"));
  EXPECT_EQ(shared_gpu(all, nodes_of_one), "");
  EXPECT_THAT(shared_gpu({gpu("1", "a"), gpu("1", "b"), gpu("2", "c")}, node),
              AllOf(HasSubstr("ranks 0 and 1 on host alpha have parts (MIG) of the GPU 1"),
                    Not(HasSubstr("share the GPU"))));
  EXPECT_EQ(shared_gpu({gpu("1", "a", "h0"), gpu("1", "a", "h1"), gpu("2", "b")}, node), "");
  EXPECT_NE(shared_gpu({gpu("1", "a", "h0"), gpu("1", "a", "h0"), gpu("2", "b")}, node), "");
  EXPECT_EQ(shared_gpu(std::vector(3, gpu("1", "a", "", true)), node), "") << "a newer NCCL";
}

TEST(SharedOverNodes, IsTheSameDeviceOnOneHostOfNccls) {
  EXPECT_EQ(shared_over_nodes({gpu("1", "a"), gpu("1", "b"), gpu("2", "c")}), "")
      << "the GPUs of two hosts may have one bus id";
  EXPECT_THAT(shared_over_nodes({gpu("1", "b"), gpu("1", "a"), gpu("1", "a")}),
              HasSubstr("ranks 1 and 2 on host alpha share the GPU 1 (a)"));
  EXPECT_EQ(shared_over_nodes({gpu("1", "a", "h0"), gpu("1", "a", "h1")}), "");
  EXPECT_EQ(shared_over_nodes(std::vector(2, gpu("1", "a", "", true))), "");
}

/// Ranks as threads, each with a fake GPU of its own world, so that all have the same bus id.
class GpuAgreement : public testing::TestWithParam<int> {
 protected:
  template <class F>
  void run(const F& body) const {
    test::run_ranks(std::vector<int>(static_cast<std::size_t>(GetParam()), 0), body);
  }
};

TEST_P(GpuAgreement, RanksOfANodeOnOneGpuAreRefusedEverywhere) {
  Topology node, nodes_of_one;
  node.ranks_of_node.emplace_back();
  for (int rank = 0; rank < GetParam(); ++rank) {
    node.ranks_of_node[0].push_back(rank);
    nodes_of_one.ranks_of_node.push_back({rank});
  }
  run([&](Bootstrap& world) {
    test::FakeNcclWorld nccl;
    test::FakeGpu gpu(nccl);
    test::expect_error(ErrorCode::invalid_use,
                       AllOf(HasSubstr("ranks 0"), HasSubstr("share the GPU 0000:01:00.0")),
                       [&] { check_gpus(gpu.cuda(), world, node, 0); });
    const auto by_rank = check_gpus(gpu.cuda(), world, nodes_of_one, 0);
    ASSERT_EQ(by_rank.size(), static_cast<std::size_t>(GetParam()));
  });
}

TEST_P(GpuAgreement, AllRanksDecideAlikeWhereDataLiesAndByWhichNetwork) {
  run([&](Bootstrap& world) {
    using enum GpuNetwork;
    const bool is_odd = world.rank() == world.size() - 1;
    Settings settings;
    settings.cuda_aware_mpi = CudaAwareMpi::on;
    EXPECT_TRUE(agree_on_device_staging(world, CudaSupport::no, settings, 2));
    EXPECT_FALSE(agree_on_device_staging(world, CudaSupport::yes, settings, 1))
        << "nothing travels between nodes";
    settings.cuda_aware_mpi = CudaAwareMpi::automatic;
    const auto support = is_odd ? CudaSupport::no : CudaSupport::yes;
    EXPECT_FALSE(agree_on_device_staging(world, support, settings, 2)) << "one says no";
    std::vector<GpuIdentity> gpus;
    for (int rank = 0; rank < GetParam(); ++rank) gpus.push_back(gpu("1", std::to_string(rank)));
    EXPECT_TRUE(agree_on_gpu_network(world, kSockets, nccl, 2, gpus));
    EXPECT_FALSE(agree_on_gpu_network(world, kFast, nccl, 1, gpus)) << "nothing is between nodes";
    EXPECT_TRUE(agree_on_gpu_network(world, kFast, automatic, 2, gpus));
    const NcclNetwork& own = is_odd ? kSockets : kFast;
    EXPECT_FALSE(agree_on_gpu_network(world, own, automatic, 2, gpus)) << "one has sockets";
    gpus.back().uuid = gpus.front().uuid;
    EXPECT_FALSE(agree_on_gpu_network(world, kFast, automatic, 2, gpus));
    test::expect_error(
        ErrorCode::invalid_use,
        AllOf(HasSubstr("HORA_GPU_NETWORK=nccl: ranks 0 and"), HasSubstr("share the GPU 1 (0)")),
        [&] { agree_on_gpu_network(world, kFast, nccl, 2, gpus); });
  });
}

INSTANTIATE_TEST_SUITE_P(, GpuAgreement, testing::Values(2, 3));

}  // namespace
}  // namespace hora::internal
