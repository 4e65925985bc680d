#include "ops/context/gpu/node_gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <cstdlib>
#include <vector>

#include "ops/cuda/functions.h"
#include "tests/support/fake_gpu/fake_gpu.h"

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

using testing::AllOf;
using enum GpuNetwork;

const NetworkFacts kNothing{};
const NetworkFacts kInfiniBand{
    .net = {}, .plugin = {}, .ib_disable = {}, .active_ports = {"mlx5_0 port 1", "mlx5_1 port 1"}};

NetworkFacts with(NetworkFacts facts, std::string NetworkFacts::*field, const char* value) {
  facts.*field = value;
  return facts;
}

TEST(NcclNetwork, IsSocketsWithoutAnActivePortOrAPlugin) {
  EXPECT_EQ(network_of(kNothing).name, "");
  EXPECT_THAT(network_of(kNothing).reason, HasSubstr("no port is active in /sys/class/infiniband"));
  EXPECT_EQ(network_of(with(kNothing, &NetworkFacts::net, "IB")).name, "")
      << "named, but not there";
}

TEST(NcclNetwork, IsInfiniBandWhereAPortIsActiveAndItIsNotDisabled) {
  EXPECT_EQ(network_of(kInfiniBand),
            (NcclNetwork{.name = "InfiniBand or RoCE", .reason = "mlx5_0 port 1 is active"}));
  EXPECT_EQ(network_of(with(kInfiniBand, &NetworkFacts::ib_disable, "0")).name,
            "InfiniBand or RoCE");
  for (const char* value : {"1", "2"}) {
    const auto disabled = network_of(with(kInfiniBand, &NetworkFacts::ib_disable, value));
    EXPECT_EQ(disabled.name, "");
    EXPECT_EQ(disabled.reason, std::string("NCCL_IB_DISABLE=") + value);
  }
}

TEST(NcclNetwork, IsThatWhichIsNamed) {
  for (const char* name : {"Socket", "socket"}) {
    EXPECT_EQ(network_of(with(kInfiniBand, &NetworkFacts::net, name)).name, "") << name;
  }
  for (const char* name : {"IB", "ib"}) {
    EXPECT_EQ(network_of(with(kInfiniBand, &NetworkFacts::net, name)).name, "InfiniBand or RoCE");
  }
  EXPECT_EQ(network_of(with(kNothing, &NetworkFacts::net, "AWS Libfabric")),
            (NcclNetwork{.name = "AWS Libfabric", .reason = "NCCL_NET=AWS Libfabric"}));
}

TEST(NcclNetwork, IsThePluginsWhereNoneIsNamed) {
  const NetworkFacts facts = with(kInfiniBand, &NetworkFacts::plugin, "ofi");
  EXPECT_EQ(network_of(facts),
            (NcclNetwork{.name = "the plugin ofi", .reason = "NCCL_NET_PLUGIN=ofi"}));
  EXPECT_EQ(network_of(with(facts, &NetworkFacts::ib_disable, "1")).name, "the plugin ofi")
      << "another network than NCCL's own";
  EXPECT_EQ(network_of(with(facts, &NetworkFacts::net, "IB")).name, "InfiniBand or RoCE");
  EXPECT_EQ(network_of(with(kInfiniBand, &NetworkFacts::plugin, "none")).name,
            "InfiniBand or RoCE");
}

TEST(NetworkFactsOfARank, AreOfItsEnvironment) {
  ::setenv("NCCL_NET", "IB", 1);
  ::setenv("NCCL_NET_PLUGIN", "ofi", 1);
  ::setenv("NCCL_IB_DISABLE", "1", 1);
  const NetworkFacts facts = network_facts();
  for (const char* variable : {"NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE"}) {
    ::unsetenv(variable);
  }
  EXPECT_EQ(facts.net, "IB");
  EXPECT_EQ(facts.plugin, "ofi");
  EXPECT_EQ(facts.ib_disable, "1");
  EXPECT_EQ(network_facts().net, "");
}

const NcclNetwork kFast = network_of(kInfiniBand);
const NcclNetwork kSockets = network_of(kNothing);

GpuNetworkChoice choose(GpuNetwork setting, const std::vector<NcclNetwork>& by_rank,
                        const std::string& shared = "") {
  return choose_gpu_network(setting, by_rank, shared);
}

TEST(GpuNetworkChoice, AutomaticWhereEveryRankHasTheSameNetwork) {
  const auto choice = choose(automatic, {kFast, kFast, kFast});
  EXPECT_TRUE(choice.by_nccl);
  EXPECT_THAT(choice.reason,
              AllOf(HasSubstr("through NCCL"),
                    HasSubstr("InfiniBand or RoCE (mlx5_0 port 1 is active) on rank 0")));
}

TEST(GpuNetworkChoice, AutomaticNamesTheRankThatHasSockets) {
  const auto choice = choose(automatic, {kFast, kFast, kSockets, kSockets});
  EXPECT_FALSE(choice.by_nccl);
  EXPECT_THAT(choice.reason,
              AllOf(HasSubstr("through MPI: on rank 2 NCCL has sockets alone (no port is active"),
                    HasSubstr("HORA_GPU_NETWORK=nccl overrides that")));
  EXPECT_THAT(choose(automatic, {kSockets, kFast}).reason, HasSubstr("on rank 0 NCCL has sockets"));
}

TEST(GpuNetworkChoice, AutomaticNamesRanksThatDiffer) {
  const NcclNetwork other = network_of(with(kNothing, &NetworkFacts::net, "other"));
  const auto choice = choose(automatic, {kFast, other});
  EXPECT_FALSE(choice.by_nccl);
  EXPECT_THAT(choice.reason, HasSubstr("on rank 1 NCCL has other (NCCL_NET=other), and on rank 0 "
                                       "InfiniBand or RoCE"));
}

TEST(GpuNetworkChoice, AutomaticSharesNoGpu) {
  const auto choice = choose(automatic, {kFast, kFast}, "ranks 0 and 1 share the GPU");
  EXPECT_FALSE(choice.by_nccl);
  EXPECT_THAT(choice.reason, HasSubstr("through MPI: ranks 0 and 1 share the GPU"));
}

TEST(GpuNetworkChoice, WhatIsSetHolds) {
  const auto by_mpi = choose(mpi, {kFast, kFast});
  EXPECT_FALSE(by_mpi.by_nccl);
  EXPECT_THAT(by_mpi.reason, HasSubstr("HORA_GPU_NETWORK=mpi"));
  const auto by_nccl = choose(nccl, {kSockets, kFast});
  EXPECT_TRUE(by_nccl.by_nccl);
  EXPECT_THAT(by_nccl.reason,
              AllOf(HasSubstr("HORA_GPU_NETWORK=nccl"), HasSubstr("sockets alone")));
}

using testing::Not;

GpuIdentity gpu(const std::string& bus_id, const std::string& uuid,
                const std::string& nccl_host = "") {
  return {.host = "alpha", .nccl_host = nccl_host, .bus_id = bus_id, .uuid = uuid};
}

const Topology kOneNode{{{0, 1, 2}}};
const Topology kNodesOfOne{{{0}, {1}, {2}}};

TEST(GpuIdentity, TellsDevicesApart) {
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
}

TEST(GpuIdentity, FailuresOfItsCallsAreErrors) {
  for (const char* call : {"get_device_properties", "device_get_pci_bus_id"}) {
    test::FakeNcclWorld world;
    test::FakeGpu gpu(world);
    gpu.fail(call, 1, cudaErrorUnknown);
    EXPECT_THROW(gpu_identity(gpu.cuda(), 0), Error) << call;
    EXPECT_EQ(gpu.cuda().get_last_error(), cudaSuccess) << call;
  }
}

TEST(GpuIdentity, SurvivesTheWayToOtherRanks) {
  GpuIdentity identity = gpu("0000:17:00.0", "u", "host1");
  EXPECT_EQ(gpu_from_lines(to_lines(identity)), identity);
  identity.nccl_host.clear();
  identity.shares = true;
  EXPECT_EQ(gpu_from_lines(to_lines(identity)), identity);
}

TEST(SharedGpu, ThereIsNoneWhereEachRankHasItsOwn) {
  EXPECT_EQ(shared_gpu({gpu("1", "a"), gpu("2", "b"), gpu("3", "c")}, kOneNode), "");
}

TEST(SharedGpu, IsNamedWithHostRanksAndWhatToDo) {
  const std::string text = shared_gpu({gpu("1", "a"), gpu("2", "b"), gpu("1", "a")}, kOneNode);
  EXPECT_THAT(text, AllOf(HasSubstr("ranks 0 and 2"), HasSubstr("host alpha"),
                          HasSubstr("share the GPU 1 (a)"), HasSubstr("start fewer ranks"),
                          HasSubstr("HORA_RANKS_PER_NODE=1"), HasSubstr("NCCL_HOSTID")));
  EXPECT_THAT(shared_gpu({gpu("1", "a"), gpu("1", "a"), gpu("1", "a")}, kOneNode),
              HasSubstr("ranks 0, 1 and 2"));
}

TEST(SharedGpu, PartsOfOneGpuAreNotOneGpuButNcclRefusesThemToo) {
  const std::string text = shared_gpu({gpu("1", "a"), gpu("1", "b"), gpu("2", "c")}, kOneNode);
  EXPECT_THAT(text, AllOf(HasSubstr("ranks 0 and 1"), HasSubstr("have parts (MIG) of the GPU 1"),
                          Not(HasSubstr("share the GPU"))));
}

TEST(SharedGpu, NodesOfOneRankMayShare) {
  EXPECT_EQ(shared_gpu({gpu("1", "a"), gpu("1", "a"), gpu("1", "a")}, kNodesOfOne), "");
}

TEST(SharedGpu, HostsThatOnlyNcclSeesMayShare) {
  EXPECT_EQ(shared_gpu({gpu("1", "a", "h0"), gpu("1", "a", "h1"), gpu("2", "b")}, kOneNode), "");
  EXPECT_NE(shared_gpu({gpu("1", "a", "h0"), gpu("1", "a", "h0"), gpu("2", "b")}, kOneNode), "");
}

TEST(SharedGpu, ANewerNcclMayBeToldToTakeThem) {
  GpuIdentity sharing = gpu("1", "a");
  sharing.shares = true;
  EXPECT_EQ(shared_gpu({sharing, sharing, sharing}, kOneNode), "");
}

TEST(SharedOverNodes, IsTheSameDeviceOnOneHostOfNccls) {
  EXPECT_EQ(shared_over_nodes({gpu("1", "a"), gpu("1", "b"), gpu("2", "c")}), "")
      << "the GPUs of two hosts may have one bus id";
  EXPECT_THAT(shared_over_nodes({gpu("1", "b"), gpu("1", "a"), gpu("1", "a")}),
              AllOf(HasSubstr("ranks 1 and 2 on host alpha"), HasSubstr("share the GPU 1 (a)")));
  EXPECT_EQ(shared_over_nodes({gpu("1", "a", "h0"), gpu("1", "a", "h1")}), "");
  GpuIdentity sharing = gpu("1", "a");
  sharing.shares = true;
  EXPECT_EQ(shared_over_nodes({sharing, sharing}), "");
}

using testing::ElementsAre;
using testing::EndsWith;

constexpr GpuLink kUnknown{LinkKind::unknown, 0};
constexpr GpuLink kSame{LinkKind::same, 0};
constexpr GpuLink kNone{LinkKind::no_access, 0};
constexpr GpuLink kPcie{LinkKind::pcie, 1};
constexpr GpuLink kNvlink{LinkKind::nvlink, 0};

/// A node whose links are the given ones, in the order 0-1, 0-2, .., 1-2, ..
NodeGpus node_of(int gpus, const std::vector<GpuLink>& pairs) {
  NodeGpus node{
      .node = 1, .host = "alpha", .ranks = {}, .bus_ids = {}, .links = {}, .transports = {}};
  node.links.assign(static_cast<std::size_t>(gpus),
                    std::vector<GpuLink>(static_cast<std::size_t>(gpus), kSame));
  auto next = pairs.begin();
  for (std::size_t i = 0; i < node.links.size(); ++i) {
    node.ranks.push_back(4 + static_cast<int>(i));
    node.bus_ids.push_back("0000:0" + std::to_string(i) + ":00.0");
    for (std::size_t j = i + 1; j < node.links.size(); ++j) {
      node.links[i][j] = node.links[j][i] = *next++;
    }
  }
  return node;
}

TEST(GpuLinks, AreWhatCudaSaysOfEachPeer) {
  test::FakeNcclWorld world;
  test::FakeGpuOptions options;
  options.peers = {{.bus_id = "0000:81:00.0"},
                   {.bus_id = "0000:82:00.0", .performance_rank = 1, .native_atomics = false},
                   {.bus_id = "0000:83:00.0", .access = false}};
  const test::FakeGpu gpu(world, options);
  const std::vector<std::string> bus_ids = {"0000:01:00.0", "0000:81:00.0", "0000:82:00.0",
                                            "0000:83:00.0", "0000:84:00.0"};
  EXPECT_THAT(links_from(gpu.cuda(), 0, bus_ids),
              ElementsAre(kSame, kNvlink, kPcie, kNone, kUnknown));
  EXPECT_EQ(gpu.cuda().get_last_error(), cudaSuccess) << "left for the application";
}

TEST(GpuLinks, AreUnknownWhereACallFails) {
  for (const char* call :
       {"device_get_by_pci_bus_id", "device_can_access_peer", "device_get_p2p_attribute"}) {
    test::FakeNcclWorld world;
    test::FakeGpuOptions options;
    options.peers = {{.bus_id = "0000:81:00.0"}};
    test::FakeGpu gpu(world, options);
    gpu.fail(call, 1, cudaErrorUnknown);
    const std::vector<std::string> bus_ids = {"0000:81:00.0"};
    EXPECT_THAT(links_from(gpu.cuda(), 0, bus_ids), ElementsAre(kUnknown)) << call;
    EXPECT_EQ(gpu.cuda().get_last_error(), cudaSuccess) << call;
  }
}

TEST(GpuLinks, OneGpuHasNone) {
  EXPECT_EQ(describe(node_of(1, {})), "node 1 on alpha: GPUs of rank 4 0000:00:00.0");
}

TEST(GpuLinks, AllAlikeTakeOneWord) {
  EXPECT_EQ(describe(node_of(3, {kNvlink, kNvlink, kNvlink})),
            "node 1 on alpha: GPUs of rank 4 0000:00:00.0, rank 5 0000:01:00.0, rank 6 "
            "0000:02:00.0; links: all NVLink (performance rank 0); NCCL: P2P");
}

TEST(GpuLinks, TheCommonestComesLastWithoutItsPairs) {
  const std::string text = describe(node_of(4, {kNvlink, kPcie, kPcie, kPcie, kPcie, kNvlink}));
  EXPECT_THAT(
      text,
      HasSubstr(
          "links: NVLink (performance rank 0) 4-5 6-7, all others PCIe (performance rank 1)"));
  EXPECT_THAT(text, EndsWith("NCCL: P2P; P2P or, between far GPUs, SHM"));
}

TEST(GpuLinks, WithoutAccessNcclGoesOverSharedMemory) {
  EXPECT_THAT(describe(node_of(2, {kNone})), EndsWith("links: all no peer access; NCCL: SHM"));
}

TEST(GpuLinks, WhatOneSideKnowsCounts) {
  NodeGpus node = node_of(2, {kUnknown});
  EXPECT_THAT(describe(node),
              AllOf(HasSubstr("all unknown (not visible to each other)"), EndsWith("unknown")));
  node.links[1][0] = kNvlink;
  EXPECT_THAT(describe(node), HasSubstr("all NVLink (performance rank 0)"));
}

TEST(GpuLinks, TheEnvironmentForbidsTransports) {
  NodeGpus node = node_of(2, {kNvlink});
  node.transports.p2p = false;
  EXPECT_THAT(describe(node), EndsWith("NCCL: SHM"));
  node.transports.shm = false;
  EXPECT_THAT(describe(node), EndsWith("NCCL: network"));
  node.transports = {.p2p = true, .shm = true, .one_host = false};
  EXPECT_THAT(describe(node), EndsWith("NCCL: network"));
}

}  // namespace

}  // namespace hora::internal
