// Allgathers and alltoalls whose ranks give their memory in different ways, in equal parts and in
// others: callers that wait write what they give into the others' results, all others are read
// from.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "core/api/results.h"
#include "tests/core/engine/on_layouts.h"
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

/// One rank's part of an exchange.
class Part {
 public:
  Part(const Exchange& exchange, int rank, NodeMemory& memory)
      : exchange_(exchange),
        rank_(rank),
        way_(exchange.ways[static_cast<std::size_t>(rank)]),
        memory_(memory),
        result_(std::make_shared<HostResult>(memory, row_of_bytes())),
        own_(input_of(exchange, rank)) {
    data_ = own_.data();
    if (way_ != Way::window) return;
    data_ = block_ = memory_.allocate(own_.size()).data;
    std::copy(own_.begin(), own_.end(), data_);
  }
  ~Part() {
    if (block_) memory_.release(block_);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  void submit(Engine& engine) {
    Request request;
    request.name = exchange_.name;
    request.data = data_;
    request.bytes = own_.size();
    request.rows = exchange_.rows[static_cast<std::size_t>(rank_)];
    request.result = result_;
    request.result_place = result_.get();
    request.signature.kind = exchange_.kind;
    request.signature.type = DataType::uint8;
    request.signature.op = ReduceOp::sum;
    request.signature.shape = {kAnyExtent, kRowBytes};
    if (way_ == Way::waits) {
      engine.submit_and_wait(std::move(request));
    } else {
      submission_ = engine.submit(std::move(request));
    }
  }
  void expect_right(Engine& engine) {
    if (submission_) engine.wait(*submission_);
    const test::Exchanged expected = expected_of(exchange_, rank_);
    EXPECT_EQ(result_->rows(), expected.rows);
    EXPECT_TRUE(std::equal(expected.bytes.begin(), expected.bytes.end(), result_->data()))
        << exchange_.name << " on rank " << rank_;
  }

 private:
  const Exchange& exchange_;
  int rank_;
  Way way_;
  NodeMemory& memory_;
  std::shared_ptr<HostResult> result_;
  test::Bytes own_;
  std::byte* data_ = nullptr;
  std::byte* block_ = nullptr;
  std::shared_ptr<Submission> submission_;
};

class ExchangesOnLayouts : public test::OnLayouts {
 protected:
  Exchange random_exchange(std::string name, std::mt19937_64& random) {
    const auto ranks = static_cast<std::size_t>(world_.size());
    constexpr std::int64_t kRows[] = {0, 1, 5, 700, 3000};
    const auto some_rows = [&] { return kRows[random() % std::size(kRows)]; };
    const bool gathers = random() % 2 == 0;
    Exchange result{
        gathers ? OperationKind::allgather : OperationKind::alltoall, std::move(name), {}, {}};
    const std::int64_t common = some_rows();
    const unsigned uneven = static_cast<unsigned>(random() % 3);  // no rank, one in two, all
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      auto& own = result.rows.emplace_back(gathers ? 1 : ranks, common);
      if (random() % 2 < uneven) std::generate(own.begin(), own.end(), some_rows);
      result.ways.push_back(static_cast<Way>(random() % 3));
    }
    return result;
  }
};

TEST_P(ExchangesOnLayouts, EveryMixtureOfWaysAndSplitsGivesTheSendersBytes) {
  auto random = test::generator();
  std::vector<std::vector<Exchange>> exchanges;
  // Names are used again, in other ways.
  for (int i = 0; i < 60; ++i)
    exchanges.push_back({random_exchange(std::to_string(i % 9), random)});
  test::run_groups<Part>(world_, exchanges);
}

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
    for (Way& way : exchange.ways) way = static_cast<Way>(random() % 3);
    exchanges.push_back({exchange});
  }
  test::run_groups<Part>(world_, exchanges);
}

TEST_P(ExchangesOnLayouts, NodesTellOneAnotherExtentsOnceUntilTheyChange) {
  const std::uint64_t told = GetParam().size() > 1 ? 1 : 0;
  auto random = test::generator();
  const auto crossings_of = [&](const Exchange& exchange) {
    const std::uint64_t before = world_.crossings();
    test::run_groups<Part>(world_, std::vector<std::vector<Exchange>>{{exchange}});
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

// Of several under way, the exchange rounds's rounds keep their order.
TEST_P(ExchangesOnLayouts, ManyAtOnceKeepApart) {
  auto random = test::generator();
  std::vector<std::vector<Exchange>> groups;
  for (int g = 0; g < 15; ++g) {
    auto& group = groups.emplace_back();
    for (int i = 0; i < 4; ++i) {
      group.push_back(random_exchange(std::to_string(g % 4) + "." + std::to_string(i), random));
      // A caller that waits cannot bring the next one: so the last of the group alone.
      for (Way& way : group.back().ways) {
        if (i < 3 && way == Way::waits) way = Way::handle;
      }
    }
  }
  test::run_groups<Part>(world_, groups);
}

INSTANTIATE_TEST_SUITE_P(Nodes, ExchangesOnLayouts,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{1, 3}),
                         test::layout_name);

}  // namespace
}  // namespace hora::internal
