#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/context/gpu/node_gpus.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

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
