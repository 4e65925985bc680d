// Blocks in other ranks' memory, told by the ranks themselves.
#include <gtest/gtest.h>
#include <hora/hora.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/api/internals.h"

namespace hora::internal::test {
namespace {

/// A rank's location, as the others see it.
std::vector<Location> exchange(const Context& world, Location own) {
  const std::vector<std::int64_t> mine{own.window, static_cast<std::int64_t>(own.offset)};
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(world.size()));
  allgather_into(world, view(mine), view(all), {.name = "locations"});
  std::vector<Location> locations;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    locations.push_back({.window = static_cast<std::uint32_t>(all[i]),
                         .offset = static_cast<std::uint64_t>(all[i + 1])});
  }
  return locations;
}

TEST(PeerMemory, RanksOfANodeReadEachOthersBuffersAlsoOfNewWindows) {
  const Context world = init();
  std::vector<Buffer> buffers;
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{100} << 20}) {
    // Ranks may have them in other windows.
    if (world.rank() % 2 == 0) buffers.emplace_back(world, std::size_t{200} << 20);
    const Buffer& own = buffers.emplace_back(world, bytes);
    std::byte* const last = own.data() + bytes - sizeof(int);
    const int rank = world.rank();
    std::memcpy(last, &rank, sizeof(rank));
    const auto location = location_of(world, last, sizeof(int));
    ASSERT_TRUE(location.has_value());
    const auto locations = exchange(world, *location);
    for (const int peer : world.ranks_of_node(world.cross_rank())) {
      int seen = -1;
      std::memcpy(&seen,
                  peer_address(world, peer, locations[static_cast<std::size_t>(peer)], sizeof(int)),
                  sizeof(seen));
      EXPECT_EQ(seen, peer);
    }
    barrier(world);
  }
}

TEST(PeerMemory, WhatIsNotSharedHasNoLocation) {
  const Context world = init();
  const std::vector<std::byte> own(100);
  EXPECT_FALSE(location_of(world, own.data(), own.size()).has_value());
}

TEST(PeerMemory, WhatAPeerDoesNotHaveIsRefused) {
  const Context world = init();
  const auto& node = world.ranks_of_node(world.cross_rank());
  const int peer = world.rank() == node.back() ? node.front() : node.back();
  const auto refused = [&](Location location, std::size_t bytes) {
    try {
      peer_address(world, peer, location, bytes);
    } catch (const Error& error) {
      return error.code() == ErrorCode::transport;
    }
    return false;
  };
  const Location first{.window = 0, .offset = 8192};
  EXPECT_FALSE(refused(first, 1));
  EXPECT_TRUE(refused(first, std::size_t{1} << 47));
  EXPECT_TRUE(refused({.window = 0, .offset = std::uint64_t{1} << 47}, 1));
  if (peer != world.rank()) {
    EXPECT_TRUE(refused({.window = 60, .offset = 8192}, 1));
  }
  EXPECT_TRUE(refused(kNowhere, 1));
  barrier(world);
}

}  // namespace
}  // namespace hora::internal::test
