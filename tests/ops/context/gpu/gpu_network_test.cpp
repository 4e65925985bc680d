#include "ops/context/gpu/gpu_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
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

}  // namespace
}  // namespace hora::internal
