#include "ops/mpi/mpi_point_to_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <chrono>
#include <numeric>
#include <set>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

class MpiPointToPointTest : public testing::Test {
 protected:
  std::vector<int> all_ranks() const {
    std::vector<int> ranks(static_cast<std::size_t>(world_.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  static void wait(MpiPointToPoint& link, PointToPoint::Request request) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!link.test(request)) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "request " << request;
    }
  }

  static std::vector<std::byte> random_bytes(std::size_t count, std::mt19937_64& random) {
    std::vector<std::byte> bytes(count);
    for (auto& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    return bytes;
  }

  Communicator world_ = Communicator::world();
  int right_ = (world_.rank() + 1) % world_.size();
  int left_ = (world_.rank() + world_.size() - 1) % world_.size();
};

TEST(MessageLimit, IsWhatATcpTransportSendsAtOnceWhereThereIsNoBetterOne) {
  EXPECT_EQ(message_limit(0, /*over_sockets=*/true), std::size_t{60} << 10);
  EXPECT_GE(message_limit(0, /*over_sockets=*/false), std::size_t{1} << 30);
  EXPECT_EQ(message_limit(4096, true), 4096U);
  EXPECT_EQ(message_limit(4096, false), 4096U);
}

TEST_F(MpiPointToPointTest, MembersAreNumberedByTheRanksGiven) {
  std::vector<int> ranks = all_ranks();
  std::reverse(ranks.begin(), ranks.end());
  const int own_index = world_.size() - 1 - world_.rank();
  MpiPointToPoint link(world_, own_index, ranks, message_limit(0, false));
  EXPECT_EQ(link.index(), own_index);
  EXPECT_EQ(link.size(), world_.size());
  const int to = (own_index + 1) % link.size();
  const int from = (own_index + link.size() - 1) % link.size();
  const auto own = static_cast<std::byte>(own_index);
  std::byte got{99};
  const auto receive = link.receive(from, 3, {&got, 1});
  const auto send = link.send(to, 3, {&own, 1});
  ASSERT_NO_FATAL_FAILURE(wait(link, receive));
  ASSERT_NO_FATAL_FAILURE(wait(link, send));
  EXPECT_EQ(got, static_cast<std::byte>(from));
}

TEST_F(MpiPointToPointTest, LongMessagesTravelInParts) {
  constexpr std::size_t part = 1000;
  auto random = test::generator();
  MpiPointToPoint link(world_, world_.rank(), all_ranks(), part);
  for (const std::size_t bytes : {0, 1, 999, 1000, 1001, 5000, 123456}) {
    const auto first = random_bytes(bytes, random);
    const auto second = random_bytes(bytes, random);
    std::vector<std::byte> got_first(bytes);
    std::vector<std::byte> got_second(bytes);
    // Two messages of one tag: the parts must not mix.
    const std::vector<PointToPoint::Request> requests{
        link.receive(left_, 32767, got_first), link.receive(left_, 32767, got_second),
        link.send(right_, 32767, first), link.send(right_, 32767, second)};
    for (const auto request : requests) {
      ASSERT_NO_FATAL_FAILURE(wait(link, request));
    }
    EXPECT_TRUE(got_first == first) << bytes;
    EXPECT_TRUE(got_second == second) << bytes;
  }
}

TEST_F(MpiPointToPointTest, RequestsAreReused) {
  MpiPointToPoint link(world_, world_.rank(), all_ranks(), message_limit(0, false));
  std::set<PointToPoint::Request> seen;
  std::byte out{1};
  std::byte in{0};
  for (int i = 0; i < 100; ++i) {
    const auto receive = link.receive(left_, 0, {&in, 1});
    const auto send = link.send(right_, 0, {&out, 1});
    seen.insert({receive, send});
    ASSERT_NO_FATAL_FAILURE(wait(link, send));
    ASSERT_NO_FATAL_FAILURE(wait(link, receive));
  }
  EXPECT_EQ(seen, (std::set<PointToPoint::Request>{0, 1}));
}

TEST_F(MpiPointToPointTest, AnotherLengthIsAnError) {
  MpiPointToPoint link(world_, world_.rank(), all_ranks(), message_limit(0, false));
  std::vector<std::size_t> lengths{7};
  if (world_.size() > 1) {  // Open MPI 4.1.4 cuts a rank's message to itself silently
    lengths.push_back(9);
  }
  // MPICH asks MPI_COMM_WORLD's handler about a request that has failed, and would end the job.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  for (const std::size_t length : lengths) {
    const std::vector<std::byte> out(length);
    std::vector<std::byte> in(8);
    const auto receive = link.receive(left_, 1, in);
    const auto send = link.send(right_, 1, out);
    const Error error = test::expect_error(ErrorCode::transport, [&] { wait(link, receive); });
    EXPECT_EQ(error.rank(), left_);
    ASSERT_NO_FATAL_FAILURE(wait(link, send));
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

TEST_F(MpiPointToPointTest, NothingIsWrittenToWhatIsWithdrawn) {
  constexpr std::size_t bytes = 3000000;
  auto random = test::generator();
  const auto out = random_bytes(bytes, random);
  for (const std::size_t part : {std::size_t{1000000}, message_limit(0, false)}) {
    MpiPointToPoint link(world_, world_.rank(), all_ranks(), part);
    const auto withdraw = [&](PointToPoint::Request receive) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!link.withdraw(receive)) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "request " << receive;
      }
    };
    std::vector<std::byte> early(bytes), next(bytes);
    ASSERT_NO_FATAL_FAILURE(withdraw(link.receive(left_, 0, early)));
    MPI_Barrier(world_.get());
    const auto send = link.send(right_, 0, out);
    ASSERT_NO_FATAL_FAILURE(wait(link, link.receive(left_, 0, next)));
    ASSERT_NO_FATAL_FAILURE(wait(link, send));
    EXPECT_TRUE(next == out) << "the message was not for the receive that was withdrawn";
    EXPECT_TRUE(early == std::vector<std::byte>(bytes));
  }
}

// The message is there, or on its way: it comes as a whole or not at all.
TEST_F(MpiPointToPointTest, WhatAMessageHasMetIsWithdrawnOnceItHasCome) {
  constexpr std::size_t bytes = 3000000;
  auto random = test::generator();
  MpiPointToPoint link(world_, world_.rank(), all_ranks(), message_limit(0, false));
  for (int round = 0; round < 20; ++round) {
    const auto out = random_bytes(bytes, random);
    std::vector<std::byte> met(bytes);
    const auto send = link.send(right_, 1, out);
    const auto receive = link.receive(left_, 1, met);
    bool is_sent = false;
    for (std::uint64_t steps = random() % 30; steps > 0 && !is_sent; --steps) {
      is_sent = link.test(send);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!link.withdraw(receive)) {
      is_sent = is_sent || link.test(send);  // its receiver waits for it
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    }
    if (met != out) {
      EXPECT_TRUE(met == std::vector<std::byte>(bytes)) << "cancelled, though a part has come";
      std::vector<std::byte> again(bytes);
      ASSERT_NO_FATAL_FAILURE(wait(link, link.receive(left_, 1, again)));
      EXPECT_TRUE(again == out);
      EXPECT_TRUE(met == std::vector<std::byte>(bytes));
    }
    if (!is_sent) {
      ASSERT_NO_FATAL_FAILURE(wait(link, send));
    }
    MPI_Barrier(world_.get());
  }
}

TEST_F(MpiPointToPointTest, PartsMustFitMpisCounts) {
  EXPECT_THROW(MpiPointToPoint(world_, world_.rank(), all_ranks(), std::size_t{1} << 31), Error);
}

TEST_F(MpiPointToPointTest, DiesWithoutWaiting) {
  const Communicator other = world_.duplicate();
  std::vector<std::byte> never(100);
  {
    MpiPointToPoint link(other, world_.rank(), all_ranks(), message_limit(0, false));
    EXPECT_FALSE(link.test(link.receive(left_, 0, never)));
  }
  MPI_Barrier(world_.get());
}

}  // namespace
}  // namespace hora::internal
