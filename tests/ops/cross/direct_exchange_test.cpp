#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <stdexcept>

#include "ops/cross/cross_group.h"
#include "tests/support/message_network.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Bytes;

/// [from][to]: what the members give one another in one exchange; many give nothing.
std::vector<std::vector<Bytes>> random_parts(int members, std::mt19937_64& random) {
  std::vector<std::vector<Bytes>> parts(static_cast<std::size_t>(members));
  for (auto& of_member : parts) {
    for (int to = 0; to < members; ++to) {
      const std::size_t bytes = random() % 3 == 0 ? 0 : random() % 300;
      of_member.push_back(test::random_values(DataType::uint8, bytes, random));
    }
  }
  return parts;
}

struct Member {
  explicit Member(PointToPoint& link) : group(link) {}
  MessageCrossGroup group;
  std::size_t started = 0;
  std::deque<Completion> open;
};

class DirectExchangeOf : public testing::TestWithParam<int> {};

// Each member at its own pace, with several exchanges open.
TEST_P(DirectExchangeOf, BringsEveryPartToItsMember) {
  constexpr std::size_t kExchanges = 40;
  constexpr std::size_t kAtOnce = 3;
  const int count = GetParam();
  const auto members_count = static_cast<std::size_t>(count);
  auto random = test::generator();
  test::MessageNetwork network(count, random());
  std::vector<std::unique_ptr<Member>> members;
  for (int i = 0; i < count; ++i) members.push_back(std::make_unique<Member>(network.member(i)));
  std::vector<std::vector<std::vector<Bytes>>> given, got;
  for (std::size_t i = 0; i < kExchanges; ++i) {
    given.push_back(random_parts(count, random));
    got.push_back(given.back());
  }

  const auto start = [&](std::size_t index) {
    Member& member = *members[index];
    const std::size_t number = member.started++;
    std::vector<std::span<const std::byte>> sends;
    std::vector<std::span<std::byte>> receives;
    for (std::size_t peer = 0; peer < members_count; ++peer) {
      sends.emplace_back(given[number][index][peer]);
      Bytes& target = got[number][peer][index];
      if (peer != index) std::fill(target.begin(), target.end(), std::byte{0});
      receives.emplace_back(target);
    }
    // Tags wrap on the way.
    member.open.push_back(
        member.group.exchange(sends, receives, CrossResources::kWindow - 20 + number));
  };
  const auto complete = [&] {
    return std::all_of(members.begin(), members.end(), [&](const auto& member) {
      return member->started == kExchanges && member->open.empty();
    });
  };
  std::size_t idle = 0;
  while (!complete()) {
    const std::size_t index = random() % members_count;
    Member& member = *members[index];
    bool moved = random() % 3 == 0 && network.deliver_one();
    if (member.started < kExchanges && member.open.size() < kAtOnce && random() % 2 == 0) {
      start(index);
      moved = true;
    }
    if (!member.open.empty()) {
      const auto which = static_cast<std::ptrdiff_t>(random() % member.open.size());
      if (member.open[static_cast<std::size_t>(which)].poll()) {
        member.open.erase(member.open.begin() + which);
        moved = true;
      }
    }
    idle = moved ? 0 : idle + 1;
    if (idle > 1000 * members_count && !network.deliver_one()) {
      throw std::logic_error("deadlock");
    }
  }
  EXPECT_EQ(network.left_over(), 0U);
  EXPECT_TRUE(got == given);
}

INSTANTIATE_TEST_SUITE_P(Members, DirectExchangeOf, testing::Values(1, 2, 3, 4, 7),
                         testing::PrintToStringParamName());

TEST(DirectExchange, RefusesOtherNumbersOfPartsThanMembers) {
  auto random = test::generator();
  test::MessageNetwork network(2, random());
  MessageCrossGroup group(network.member(0));
  const std::vector<std::span<const std::byte>> sends(2);
  const std::vector<std::span<std::byte>> receives(3);
  EXPECT_THROW(group.exchange(sends, receives, 0), Error);
  const std::vector<std::span<const std::byte>> one_send(1);
  EXPECT_THROW(group.exchange(one_send, {receives.data(), 2}, 0), Error);
}

}  // namespace
}  // namespace hora::internal
