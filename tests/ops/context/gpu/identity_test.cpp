#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include "ops/context/gpu/node_gpus.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
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

}  // namespace
}  // namespace hora::internal
