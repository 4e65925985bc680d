#include "ops/mpi/tree_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

class MpiTreeLinkTest : public testing::Test {
 protected:
  // Node numbers run against rank numbers, so that a mix-up shows.
  static std::vector<int> leaders_of(const Communicator& world) {
    std::vector<int> leaders(static_cast<std::size_t>(world.size()));
    std::iota(leaders.rbegin(), leaders.rend(), 0);
    return leaders;
  }

  // The next message; fails after 20 s.
  TreeLink::Received wait_for_message() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < deadline) {
      if (auto received = link_.receive()) {
        return *std::move(received);
      }
    }
    throw std::runtime_error("no message within 20 s");
  }

  void flush() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!link_.flushed()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "messages were not sent in 20 s";
    }
  }

  // To be called by all before leaving: nothing may be left that no rank has asked for.
  void expect_silence() {
    flush();
    MPI_Barrier(world_.get());
    EXPECT_FALSE(link_.receive().has_value());
  }

  Communicator world_ = Communicator::world();
  Communicator traffic_ = world_.duplicate();
  int nodes_ = world_.size();
  int node_ = nodes_ - 1 - world_.rank();
  MpiTreeLink link_{traffic_, leaders_of(world_), node_};
};

// First 4 bytes: serial number. The rest: a function of sender, serial number and position.
std::vector<std::byte> message(int sender, std::uint32_t serial, std::size_t length) {
  std::vector<std::byte> bytes(std::max(length, sizeof(serial)));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 31 + serial * 7 + static_cast<std::size_t>(sender));
  }
  std::memcpy(bytes.data(), &serial, sizeof(serial));
  return bytes;
}

TEST_F(MpiTreeLinkTest, NothingSentIsNothingReceived) {
  EXPECT_FALSE(link_.receive().has_value());
  EXPECT_TRUE(link_.flushed());
}

TEST_F(MpiTreeLinkTest, LengthsAroundTheHead) {
  const std::vector<std::size_t> lengths{0, 1, 4023, 4024, 4025, 4032, 65536, 1000000};
  const int to = (node_ + 1) % nodes_;
  const int from = (node_ + nodes_ - 1) % nodes_;
  for (const std::size_t length : lengths) {
    link_.send(to, std::vector<std::byte>(length, static_cast<std::byte>(node_)));
  }
  for (const std::size_t length : lengths) {
    const auto received = wait_for_message();
    EXPECT_EQ(received.node, from);
    EXPECT_EQ(received.bytes, std::vector<std::byte>(length, static_cast<std::byte>(from)));
  }
  expect_silence();
}

TEST_F(MpiTreeLinkTest, KeepsTheOrderOfEachPair) {
  constexpr std::uint32_t messages = 300;
  auto random = test::generator(static_cast<std::uint64_t>(node_));
  std::vector<std::uint32_t> sent(static_cast<std::size_t>(nodes_));
  std::vector<std::uint32_t> received(static_cast<std::size_t>(nodes_));
  const auto total = messages * static_cast<std::uint32_t>(nodes_);

  const auto take = [&](const TreeLink::Received& arrived) {
    auto& expected = received[static_cast<std::size_t>(arrived.node)];
    ASSERT_EQ(arrived.bytes, message(arrived.node, expected, arrived.bytes.size()));
    ++expected;
  };
  std::uint32_t sent_in_all = 0;
  while (sent_in_all < total) {
    const auto to = static_cast<std::size_t>(random() % static_cast<std::uint64_t>(nodes_));
    if (sent[to] < messages) {
      // One in eight needs a second MPI message, some of them a rendezvous.
      const std::size_t length = random() % (random() % 8 == 0 ? 50000 : 4000);
      auto bytes = message(node_, sent[to]++, length);
      link_.send(static_cast<int>(to), bytes);
      std::fill(bytes.begin(), bytes.end(), std::byte{0});  // send() has copied it
      ++sent_in_all;
    }
    if (random() % 4 == 0) {
      if (const auto arrived = link_.receive()) {
        ASSERT_NO_FATAL_FAILURE(take(*arrived));
      }
    }
  }
  while (std::accumulate(received.begin(), received.end(), 0U) < total) {
    ASSERT_NO_FATAL_FAILURE(take(wait_for_message()));
  }
  EXPECT_THAT(received, testing::Each(messages));
  expect_silence();
}

TEST_F(MpiTreeLinkTest, RefusesWhatIsTooLongOrGoesNowhere) {
  const std::vector<std::byte> longest(MpiTreeLink::kMaximumBytes);
  link_.send((node_ + 1) % nodes_, longest);
  EXPECT_EQ(wait_for_message().bytes.size(), longest.size());
  test::expect_error(ErrorCode::invalid_argument, testing::HasSubstr("16777217 bytes"), [&] {
    link_.send(0, std::vector<std::byte>(MpiTreeLink::kMaximumBytes + 1));
  });
  EXPECT_THROW(link_.send(nodes_, {}), Error);
  EXPECT_THROW(link_.send(-1, {}), Error);
  expect_silence();
}

TEST_F(MpiTreeLinkTest, AStrangersBytesAreRefused) {
  const std::uint64_t absurd = std::uint64_t{1} << 60;
  const int to_rank = (world_.rank() + 1) % world_.size();
  MPI_Request request = MPI_REQUEST_NULL;
  ASSERT_EQ(MPI_Isend(&absurd, sizeof(absurd), MPI_BYTE, to_rank, 0, traffic_.get(), &request),
            MPI_SUCCESS);
  test::expect_error(ErrorCode::transport, testing::HasSubstr("malformed"),
                     [&] { wait_for_message(); });
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Barrier(world_.get());
}

// Destroying a link with messages under way must not wait for peers that are gone.
TEST_F(MpiTreeLinkTest, DiesWithoutWaiting) {
  const Communicator other = world_.duplicate();
  const int to_rank = (world_.rank() + 1) % world_.size();
  std::vector<std::byte> head(4032);  // of a message whose rest never arrives
  const std::uint64_t length = 100000;
  std::memcpy(head.data(), &length, sizeof(length));
  {
    MpiTreeLink link(other, leaders_of(world_), node_);
    ASSERT_EQ(
        MPI_Send(head.data(), static_cast<int>(head.size()), MPI_BYTE, to_rank, 0, other.get()),
        MPI_SUCCESS);
    MPI_Barrier(world_.get());
    for (int i = 0; i < 100; ++i) {
      EXPECT_FALSE(link.receive().has_value());
    }
  }
  MPI_Barrier(world_.get());
}

}  // namespace
}  // namespace hora::internal
