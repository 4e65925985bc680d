#include "ops/mpi/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(Communicator, MovesItsOwnership) {
  Communicator first = Communicator::world();
  const MPI_Comm handle = first.get();
  Communicator second = std::move(first);
  EXPECT_EQ(first.get(), MPI_COMM_NULL);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.get(), handle);
  first = Communicator::world();
  EXPECT_NE(first.get(), second.get());
  second = std::move(first);
  mpi_check(MPI_Barrier(second.get()), "MPI_Barrier");
}

TEST(MpiCheck, ErrorsAreNamedAndCountsNarrowedWhereTheyFit) {
  const Communicator world = Communicator::world();
  const int no_rank = world.size();
  const Error error = test::expect_error(
      ErrorCode::transport,
      testing::AllOf(testing::HasSubstr("MPI_Send to rank " + std::to_string(no_rank)),
                     testing::AnyOf(testing::HasSubstr("MPI_ERR_RANK"),    // Open MPI
                                    testing::HasSubstr("Invalid rank"))),  // MPICH
      [&] {
        mpi_check(MPI_Send(&no_rank, 1, MPI_INT, no_rank, 0, world.get()), "MPI_Send to", no_rank);
      });
  EXPECT_EQ(error.rank(), no_rank);
  constexpr std::size_t limit = std::numeric_limits<int>::max();
  EXPECT_EQ(mpi_count(limit, "it"), std::numeric_limits<int>::max());
  EXPECT_THROW(mpi_count(limit + 1, "it"), Error);
}

using Bytes = std::vector<std::byte>;

TEST(MpiBootstrap, AllGatherKeepsLengthsAndOrderAndAllRanksOfThisTestAreOnOneHost) {
  MpiBootstrap world(Communicator::world());
  std::vector<Bytes> expected;  // rank 0 gives nothing at all
  for (int rank = 0; rank < world.size(); ++rank) {
    expected.emplace_back(static_cast<std::size_t>(rank) * 1000, static_cast<std::byte>(rank));
  }
  EXPECT_EQ(world.all_gather(expected[static_cast<std::size_t>(world.rank())]), expected);
  const auto host = world.of_host();
  EXPECT_EQ(host->rank(), world.rank());
  EXPECT_EQ(host->size(), world.size());
  host->barrier();
}

/// Asks until it is true; fails after 20 s.
template <class F>
void wait_until(const F& is_true) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is_true()) ASSERT_LT(std::chrono::steady_clock::now(), deadline);
}

class MpiPointToPointTest : public testing::Test {
 protected:
  std::vector<int> all_ranks() const {
    std::vector<int> ranks(static_cast<std::size_t>(world_.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  static void wait(MpiPointToPoint& link, PointToPoint::Request request) {
    wait_until([&] { return link.test(request); });
  }

  static Bytes random_bytes(std::size_t count, std::mt19937_64& random) {
    return test::random_values(DataType::uint8, count, random);
  }

  Communicator world_ = Communicator::world();
  int right_ = (world_.rank() + 1) % world_.size();
  int left_ = (world_.rank() + world_.size() - 1) % world_.size();
};

TEST_F(MpiPointToPointTest, PartsAreWhatTransportsSendAtOnceAndFitMpisCounts) {
  EXPECT_EQ(message_limit(0, /*over_sockets=*/true), std::size_t{60} << 10);
  EXPECT_GE(message_limit(0, /*over_sockets=*/false), std::size_t{1} << 30);
  EXPECT_EQ(message_limit(4096, true), 4096U);
  EXPECT_EQ(message_limit(4096, false), 4096U);
  EXPECT_THROW(MpiPointToPoint(world_, world_.rank(), all_ranks(), std::size_t{1} << 31), Error);
}

TEST_F(MpiPointToPointTest, LongMessagesTravelInParts) {
  constexpr std::size_t part = 1000;
  auto random = test::generator();
  // Members' numbers run against ranks, so that a mix-up shows.
  std::vector<int> ranks = all_ranks();
  std::reverse(ranks.begin(), ranks.end());
  const int size = world_.size();
  const int own = size - 1 - world_.rank();
  const int to = (own + 1) % size, from = (own + size - 1) % size;
  MpiPointToPoint link(world_, own, ranks, part);
  for (const std::size_t bytes : {0, 1, 999, 1000, 1001, 5000, 123456}) {
    // The same values everywhere, but for the sender's number.
    const auto first = random_bytes(bytes, random), second = random_bytes(bytes, random);
    const auto sent = [&](Bytes values, int sender) {
      if (!values.empty()) values.back() = static_cast<std::byte>(sender);
      return values;
    };
    const auto first_sent = sent(first, own), second_sent = sent(second, own);
    Bytes got_first(bytes);
    Bytes got_second(bytes);
    // Two messages of one tag: the parts must not mix.
    const std::vector<PointToPoint::Request> requests{
        link.receive(from, 32767, got_first), link.receive(from, 32767, got_second),
        link.send(to, 32767, first_sent), link.send(to, 32767, second_sent)};
    for (const auto request : requests) ASSERT_NO_FATAL_FAILURE(wait(link, request));
    EXPECT_TRUE(got_first == sent(first, from)) << bytes;
    EXPECT_TRUE(got_second == sent(second, from)) << bytes;
  }
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
    const Bytes out(length);
    Bytes in(8);
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
    Bytes early(bytes), next(bytes);
    const auto receive = link.receive(left_, 0, early);
    ASSERT_NO_FATAL_FAILURE(wait_until([&] { return link.cancel(receive); }));
    MPI_Barrier(world_.get());
    const auto send = link.send(right_, 0, out);
    ASSERT_NO_FATAL_FAILURE(wait(link, link.receive(left_, 0, next)));
    ASSERT_NO_FATAL_FAILURE(wait(link, send));
    EXPECT_TRUE(next == out) << "the message was not for the receive that was cancelled";
    EXPECT_TRUE(early == Bytes(bytes));
  }
}

// The message is there, or on its way: it comes as a whole or not at all.
TEST_F(MpiPointToPointTest, WhatAMessageHasMetIsWithdrawnOnceItHasCome) {
  constexpr std::size_t bytes = 3000000;
  auto random = test::generator();
  MpiPointToPoint link(world_, world_.rank(), all_ranks(), message_limit(0, false));
  for (int round = 0; round < 20; ++round) {
    const auto out = random_bytes(bytes, random);
    Bytes met(bytes);
    const auto send = link.send(right_, 1, out);
    const auto receive = link.receive(left_, 1, met);
    bool is_sent = false;
    for (std::uint64_t steps = random() % 30; steps > 0 && !is_sent; --steps) {
      is_sent = link.test(send);
    }
    ASSERT_NO_FATAL_FAILURE(wait_until([&] {
      is_sent = is_sent || link.test(send);  // its receiver waits for it
      return link.cancel(receive);
    }));
    if (met != out) {
      EXPECT_TRUE(met == Bytes(bytes)) << "cancelled, though a part has come";
      Bytes again(bytes);
      ASSERT_NO_FATAL_FAILURE(wait(link, link.receive(left_, 1, again)));
      EXPECT_TRUE(again == out);
      EXPECT_TRUE(met == Bytes(bytes));
    }
    if (!is_sent) {
      ASSERT_NO_FATAL_FAILURE(wait(link, send));
    }
    MPI_Barrier(world_.get());
  }
}

TEST_F(MpiPointToPointTest, DiesWithoutWaiting) {
  const Communicator other = Communicator::world();
  Bytes never(100);
  {
    MpiPointToPoint link(other, world_.rank(), all_ranks(), message_limit(0, false));
    EXPECT_FALSE(link.test(link.receive(left_, 0, never)));
  }
  MPI_Barrier(world_.get());
}

class MpiTreeLinkTest : public testing::Test {
 protected:
  // Node numbers run against rank numbers, so that a mix-up shows.
  static std::vector<int> leaders_of(const Communicator& world) {
    std::vector<int> leaders(static_cast<std::size_t>(world.size()));
    std::iota(leaders.rbegin(), leaders.rend(), 0);
    return leaders;
  }

  TreeLink::Received wait_for_message() {
    std::optional<TreeLink::Received> received;
    wait_until([&] { return (received = link_.receive()).has_value(); });
    return received.value();
  }

  // To be called by all before leaving: nothing may be left that no rank has asked for.
  void expect_silence() {
    wait_until([&] { return link_.flushed(); });
    MPI_Barrier(world_.get());
    EXPECT_FALSE(link_.receive().has_value());
  }

  Communicator world_ = Communicator::world();
  Communicator traffic_ = Communicator::world();
  int nodes_ = world_.size();
  int node_ = nodes_ - 1 - world_.rank();
  MpiTreeLink link_{traffic_, leaders_of(world_), node_};
};

// A function of sender, serial number and position.
Bytes message(int sender, std::uint32_t serial, std::size_t length) {
  Bytes bytes(length);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 31 + serial * 7 + static_cast<std::size_t>(sender));
  }
  return bytes;
}

TEST_F(MpiTreeLinkTest, KeepsTheOrderOfEachPairAtLengthsAroundTheHead) {
  constexpr std::uint32_t messages = 300;
  constexpr std::size_t lengths[] = {0, 1, 4023, 4024, 4025, 4032, 65536, 1000000};
  auto random = test::generator(static_cast<std::uint64_t>(node_));
  std::vector<std::uint32_t> sent(static_cast<std::size_t>(nodes_));
  std::vector<std::uint32_t> received(static_cast<std::size_t>(nodes_));
  const auto total = messages * static_cast<std::uint32_t>(nodes_);

  const auto take = [&](const TreeLink::Received& arrived) {
    const std::uint32_t serial = received[static_cast<std::size_t>(arrived.node)]++;
    const std::size_t length = arrived.bytes.size();
    ASSERT_TRUE(arrived.bytes == message(arrived.node, serial, length)) << length << " bytes";
    ASSERT_TRUE(serial >= std::size(lengths) || length == lengths[serial]) << length << " bytes";
  };
  std::uint32_t sent_in_all = 0;
  while (sent_in_all < total) {
    const auto to = static_cast<std::size_t>(random() % static_cast<std::uint64_t>(nodes_));
    if (sent[to] < messages) {
      // One in eight needs a second MPI message, some of them a rendezvous.
      const std::size_t length = sent[to] < std::size(lengths)
                                     ? lengths[sent[to]]
                                     : random() % (random() % 8 == 0 ? 50000 : 4000);
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

TEST_F(MpiTreeLinkTest, RefusesWhatIsTooLong) {
  const Bytes longest(MpiTreeLink::kMaximumBytes);
  link_.send((node_ + 1) % nodes_, longest);
  EXPECT_EQ(wait_for_message().bytes.size(), longest.size());
  test::expect_error(ErrorCode::invalid_argument, testing::HasSubstr("16777217 bytes"),
                     [&] { link_.send(0, Bytes(MpiTreeLink::kMaximumBytes + 1)); });
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
  const Communicator other = Communicator::world();
  const int to_rank = (world_.rank() + 1) % world_.size();
  Bytes head(4032);  // of a message whose rest never arrives
  const std::uint64_t length = 100000;
  std::memcpy(head.data(), &length, sizeof(length));
  {
    MpiTreeLink link(other, leaders_of(world_), node_);
    ASSERT_EQ(
        MPI_Send(head.data(), static_cast<int>(head.size()), MPI_BYTE, to_rank, 0, other.get()),
        MPI_SUCCESS);
    MPI_Barrier(world_.get());
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(link.receive().has_value());
  }
  MPI_Barrier(world_.get());
}

}  // namespace
}  // namespace hora::internal
