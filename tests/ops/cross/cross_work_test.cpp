#include "ops/cross/cross_work.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "ops/cross/staging_space.h"
#include "tests/support/message_network.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(WorkBuffer, IsAlignedAndKeptWhileItIsLongEnough) {
  WorkBuffer buffer(host_space());
  for (const std::size_t bytes : {1, 100, 5000}) {
    const std::byte* data = buffer.reserve(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0U);
    EXPECT_EQ(buffer.reserve(bytes), data);
    EXPECT_EQ(buffer.reserve(bytes / 2), data);
  }
}

TEST(CrossResources, WorkspacesAreReused) {
  auto random = test::generator();
  test::MessageNetwork network(1, random());
  CrossResources resources(network.member(0), host_space());
  Workspace& first = resources.begin(0);
  Workspace& second = resources.begin(1);
  EXPECT_NE(&first, &second);
  resources.end(0, first);
  EXPECT_EQ(&resources.begin(2), &first);
  resources.end(1, second);
  EXPECT_EQ(&resources.begin(1 + CrossResources::kWindow), &second);
}

TEST(RequestQueue, AsksForTheOldestOnly) {
  auto random = test::generator();
  test::MessageNetwork network(2, random());
  std::byte in[2] = {};
  const std::byte out{7};
  RequestQueue queue;
  queue.add(network.member(0).receive(1, 0, {&in[0], 1}));
  queue.add(network.member(0).receive(1, 1, {&in[1], 1}));
  network.member(1).send(0, 1, {&out, 1});
  EXPECT_TRUE(network.deliver_one());  // the second one
  EXPECT_FALSE(queue.drained(network.member(0)));
  EXPECT_EQ(queue.completed(), 0U);
  network.member(1).send(0, 0, {&out, 1});
  EXPECT_TRUE(network.deliver_one());
  EXPECT_TRUE(queue.next_completed(network.member(0)));
  EXPECT_FALSE(queue.all_completed());
  EXPECT_TRUE(queue.drained(network.member(0)));
  EXPECT_FALSE(queue.next_completed(network.member(0)));
}

}  // namespace
}  // namespace hora::internal
