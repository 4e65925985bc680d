#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "core/api/results.h"
#include "tests/core/engine/engine_fixture.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Way;

constexpr std::size_t kRowBytes = 24;

struct Exchange {
  OperationKind kind;
  std::string name;
  std::vector<std::vector<std::int64_t>> rows;  ///< [from][to]; of an allgather [from][0]
  std::vector<Way> ways;                        ///< by rank
};

test::Bytes input_of(const Exchange& exchange, int rank) {
  const auto& own = exchange.rows[static_cast<std::size_t>(rank)];
  const std::int64_t rows = std::accumulate(own.begin(), own.end(), std::int64_t{0});
  test::Bytes bytes(static_cast<std::size_t>(rows) * kRowBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(rank) * 31 + 1);
  }
  return bytes;
}

test::Exchanged expected_of(const Exchange& exchange, int rank) {
  std::vector<test::Bytes> inputs;
  for (std::size_t from = 0; from < exchange.rows.size(); ++from) {
    inputs.push_back(input_of(exchange, static_cast<int>(from)));
  }
  return exchange.kind == OperationKind::allgather
             ? test::allgathered(inputs, exchange.rows, kRowBytes)
             : test::alltoall_of(inputs, exchange.rows, kRowBytes, rank);
}

ResultForm row_of_bytes() {
  ResultForm form;
  form.type = DataType::uint8;
  form.row = {kRowBytes};
  return form;
}

class PartOfExchange final : public test::Part {
 public:
  PartOfExchange(const Exchange& exchange, int rank, NodeMemory& memory)
      : Part(exchange.ways[static_cast<std::size_t>(rank)], memory, input_of(exchange, rank)),
        exchange_(exchange),
        rank_(rank),
        result_(std::make_shared<HostResult>(memory, row_of_bytes())) {}

 private:
  Request request() override {
    Request request;
    request.name = exchange_.name;
    request.data = data().data();
    request.bytes = data().size();
    request.rows = exchange_.rows[static_cast<std::size_t>(rank_)];
    request.result = result_;
    request.signature.kind = exchange_.kind;
    request.signature.type = DataType::uint8;
    request.signature.op = ReduceOp::sum;
    request.signature.shape = {kAnyExtent, kRowBytes};
    return request;
  }
  void check() override {
    const test::Exchanged expected = expected_of(exchange_, rank_);
    EXPECT_EQ(result_->rows(), expected.rows);
    EXPECT_TRUE(std::equal(expected.bytes.begin(), expected.bytes.end(), result_->data()))
        << exchange_.name << " on rank " << rank_;
  }

  const Exchange& exchange_;
  int rank_;
  std::shared_ptr<HostResult> result_;
};

class ExchangesOnLayouts : public test::OnLayouts {
 protected:
  Exchange random_exchange(std::string name, std::mt19937_64& random, bool is_last = true) {
    const auto ranks = static_cast<std::size_t>(world_.size());
    constexpr std::int64_t kRows[] = {0, 1, 5, 700, 3000};
    const auto some_rows = [&] { return kRows[random() % std::size(kRows)]; };
    const bool gathers = random() % 2 == 0;
    Exchange result{gathers ? OperationKind::allgather : OperationKind::alltoall,
                    std::move(name),
                    {},
                    test::random_ways(random, world_.size(), is_last)};
    const std::int64_t common = some_rows();
    const unsigned uneven = static_cast<unsigned>(random() % 3);  // no rank, one in two, all
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      auto& own = result.rows.emplace_back(gathers ? 1 : ranks, common);
      if (random() % 2 < uneven) std::generate(own.begin(), own.end(), some_rows);
    }
    return result;
  }
};

// Whichever rank changes what it brings, or none.
TEST_P(ExchangesOnLayouts, ANameBringsWhatItBroughtUntilOneRankBringsOtherRows) {
  auto random = test::generator();
  std::vector<std::vector<Exchange>> exchanges;
  std::map<std::string, Exchange> last;
  for (int i = 0; i < 120; ++i) {
    const std::string name = std::to_string(random() % 5);
    Exchange& exchange = last.try_emplace(name, random_exchange(name, random)).first->second;
    if (random() % 3 == 0) {
      auto& own = exchange.rows[random() % exchange.rows.size()];
      own[random() % own.size()] = static_cast<std::int64_t>(random() % 900);
    }
    exchange.ways = test::random_ways(random, world_.size(), true);
    exchanges.push_back({exchange});
  }
  test::run_groups<PartOfExchange>(world_, exchanges);
}

TEST_P(ExchangesOnLayouts, NodesTellOneAnotherExtentsOnceUntilTheyChange) {
  const std::uint64_t told = GetParam().size() > 1 ? 1 : 0;
  auto random = test::generator();
  const auto crossings_of = [&](const Exchange& exchange) {
    const std::uint64_t before = world_.crossings();
    test::run_groups<PartOfExchange>(world_, std::vector<std::vector<Exchange>>{{exchange}});
    return world_.crossings() - before;
  };
  for (int i = 0; i < 10; ++i) {
    Exchange exchange = random_exchange("e" + std::to_string(i), random);
    const std::uint64_t first = crossings_of(exchange);
    EXPECT_EQ(crossings_of(exchange), first - told);
    EXPECT_EQ(crossings_of(exchange), first - told);
    for (auto& extent : exchange.rows.back()) extent += 1;
    Exchange alike = exchange;
    alike.name += " alike";
    const std::uint64_t changed = crossings_of(alike);
    EXPECT_EQ(crossings_of(exchange), changed);
    EXPECT_EQ(crossings_of(exchange), changed - told);
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, ExchangesOnLayouts,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{1, 3}),
                         test::layout_name);

struct Broadcast {
  std::string name;
  int root;
  std::size_t bytes;
  std::vector<Way> ways;  ///< by rank
};

std::byte value_of(const Broadcast& broadcast, std::size_t i) {
  return static_cast<std::byte>(i * 7 + static_cast<std::size_t>(broadcast.root) + 1);
}

class BroadcastPart final : public test::Part {
 public:
  BroadcastPart(const Broadcast& broadcast, int rank, NodeMemory& memory)
      : Part(broadcast.ways[static_cast<std::size_t>(rank)], memory, input_of(broadcast, rank)),
        broadcast_(broadcast) {}

 private:
  static std::vector<std::byte> input_of(const Broadcast& broadcast, int rank) {
    std::vector<std::byte> bytes(broadcast.bytes);
    for (std::size_t i = 0; i < bytes.size() && rank == broadcast.root; ++i) {
      bytes[i] = value_of(broadcast, i);
    }
    return bytes;
  }
  Request request() override {
    Signature signature;
    signature.kind = OperationKind::broadcast;
    signature.type = DataType::uint8;
    signature.root = broadcast_.root;
    signature.shape = {static_cast<std::int64_t>(broadcast_.bytes)};
    return {broadcast_.name, signature, data().data()};
  }
  void check() override {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < broadcast_.bytes; ++i) {
      wrong += data()[i] != value_of(broadcast_, i);
    }
    EXPECT_EQ(wrong, 0U) << broadcast_.name << " of " << broadcast_.bytes;
  }

  const Broadcast& broadcast_;
};

class BroadcastOnLayouts : public test::OnLayouts {};

// Those of ranks that wait are fetched; several may travel in one message with others that are not.
TEST_P(BroadcastOnLayouts, EveryMixtureOfWaysGivesTheRootsBytes) {
  auto random = test::generator();
  constexpr std::size_t kSizes[] = {
      0, 63, 4096, 100'000, kFollowedBytes + 70'001, (std::size_t{1} << 20) + 5};
  std::vector<std::vector<Broadcast>> groups;
  for (int g = 0; g < 40; ++g) {
    auto& group = groups.emplace_back();
    const int root = static_cast<int>(random() % static_cast<unsigned>(world_.size()));
    for (int i = 0; i < 3; ++i) {
      // Names are used again, in other ways.
      group.push_back(
          {.name = std::to_string(g % 7) + "." + std::to_string(i) + "." + std::to_string(root),
           .root = root,
           .bytes = kSizes[random() % std::size(kSizes)],
           .ways = test::random_ways(random, world_.size(), i == 2)});
    }
  }
  test::run_groups<BroadcastPart>(world_, groups);
}

INSTANTIATE_TEST_SUITE_P(Nodes, BroadcastOnLayouts,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{1, 3}),
                         test::layout_name);

}  // namespace
}  // namespace hora::internal
