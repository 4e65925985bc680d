// Exchanges on many layouts against their definitions, among themselves and among allreduces.
#include "ops/hierarchy/exchange_run.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <string>

#include "tests/ops/hierarchy/exchange_world.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::ExchangeOperation;
using test::ExchangeOutcome;
using test::ExchangeWorld;
using Layout = std::vector<std::vector<int>>;
using Outcomes = std::vector<std::vector<ExchangeOutcome>>;

constexpr OperationKind kKinds[] = {OperationKind::allgather, OperationKind::alltoall,
                                    OperationKind::reduce_scatter};

const Layout kLayouts[] = {
    {{0}},
    {{0, 1}},
    {{0, 1, 2}},
    {{0, 1, 2, 3}},
    {{0}, {1}},
    {{0, 1}, {2, 3}},
    {{0, 1, 2}, {3, 4}},
    {{0}, {1, 2}, {3}},
    {{0, 2}, {1, 3}},
    {{0, 3, 5}, {1, 4}, {2, 6}},
};

std::string name_of_layout(const Layout& layout) {
  std::string name;
  for (const auto& ranks : layout) {
    name += name.empty() ? "" : "_and";
    for (const int rank : ranks) name += "_" + std::to_string(rank);
  }
  return name.front() == '_' ? name.substr(1) : name;
}

class ExchangeOn : public testing::TestWithParam<Layout> {
 protected:
  std::size_t random_chunk() { return 64 * (1 + random_() % 12); }

  /// Exchanges of every kind, allreduces between them.
  std::vector<ExchangeOperation> random_operations(std::size_t count) {
    std::vector<ExchangeOperation> result;
    while (result.size() < count) {
      const OperationKind kind = kKinds[random_() % std::size(kKinds)];
      result.push_back(test::random_exchange(kind, topology_.size(), 40, random_));
      if (kind == OperationKind::reduce_scatter && random_() % 2 == 0) {
        result.back() = allreduce_of(result.back());
      }
    }
    return result;
  }

  void expect_outcomes(const std::vector<ExchangeOperation>& operations, const Outcomes& outcomes) {
    for (std::size_t i = 0; i < operations.size(); ++i) {
      for (int rank = 0; rank < topology_.size(); ++rank) {
        const ExchangeOutcome& outcome = outcomes[i][static_cast<std::size_t>(rank)];
        const test::Exchanged expected = operations[i].expected(topology_, rank);
        ASSERT_EQ(outcome.rows, expected.rows);
        ASSERT_TRUE(outcome.bytes == expected.bytes)
            << "operation " << i << ", " << name_of(operations[i].kind) << " of "
            << name_of(operations[i].type) << " in rows of " << operations[i].row_bytes
            << " bytes, on rank " << rank;
      }
    }
  }

  std::mt19937_64 random_ = test::generator();
  Topology topology_{GetParam()};
};

TEST_P(ExchangeOn, GivesWhatItsDefinitionSays) {
  for (int round = 0; round < 40; ++round) {
    ExchangeWorld world(topology_, random_chunk());
    for (const OperationKind kind : kKinds) {
      const std::vector operations = {
          test::random_exchange(kind, topology_.size(), 1 + 30 * (round % 4), random_)};
      ASSERT_NO_FATAL_FAILURE(expect_outcomes(operations, world.run_in_steps(operations, random_)));
    }
    EXPECT_FALSE(world.polls());
  }
}

TEST_P(ExchangeOn, MixesWithAllreducesInAnyOrder) {
  for (int round = 0; round < 10; ++round) {
    ExchangeWorld world(topology_, random_chunk());
    for (int batch = 0; batch < 3; ++batch) {
      const auto operations = random_operations(1 + random_() % 12);
      ASSERT_NO_FATAL_FAILURE(expect_outcomes(operations, world.run_in_steps(operations, random_)));
    }
  }
}

TEST_P(ExchangeOn, AReduceScatterHasTheBitsOfTheAllreduce) {
  for (int round = 0; round < 30; ++round) {
    ExchangeWorld world(topology_, random_chunk());
    const auto scattered =
        test::random_exchange(OperationKind::reduce_scatter, topology_.size(), 60, random_);
    const Outcomes outcomes = world.run_in_steps({scattered, allreduce_of(scattered)}, random_);
    test::Bytes parts;
    for (const ExchangeOutcome& outcome : outcomes[0]) {
      parts.insert(parts.end(), outcome.bytes.begin(), outcome.bytes.end());
    }
    for (const ExchangeOutcome& outcome : outcomes[1]) {
      ASSERT_TRUE(outcome.bytes == parts) << name_of(scattered.type);
    }
  }
}

TEST_P(ExchangeOn, ManyRoundsInThreads) {
  ExchangeWorld world(topology_, 256);
  const auto operations = random_operations(12);
  expect_outcomes(operations, world.run_in_threads(operations));
}

// The first extents fill a round's memory, later ones need more of it.
TEST_P(ExchangeOn, GrowsItsMemoryFromOneExchangeToTheNext) {
  ExchangeWorld world(topology_, std::size_t{1} << 14);
  for (const std::int64_t most_rows : {1, 10, 100, 1000}) {
    for (const OperationKind kind : kKinds) {
      const std::vector operations = {
          test::random_exchange(kind, topology_.size(), most_rows, random_)};
      ASSERT_NO_FATAL_FAILURE(expect_outcomes(operations, world.run_in_steps(operations, random_)));
    }
  }
}

TEST_P(ExchangeOn, OneRankAloneGives) {
  for (int giver = 0; giver < topology_.size(); ++giver) {
    ExchangeWorld world(topology_, 128);
    for (const OperationKind kind : {OperationKind::allgather, OperationKind::alltoall}) {
      auto operation = test::random_exchange(kind, topology_.size(), 0, random_);
      operation.row_bytes = 24;
      operation.type = DataType::float64;
      auto& own = operation.rows[static_cast<std::size_t>(giver)];
      std::fill(own.begin(), own.end(), std::int64_t{37});
      operation.inputs[static_cast<std::size_t>(giver)] =
          test::random_values(DataType::float64, own.size() * 37 * 24, random_);
      const std::vector operations = {operation};
      ASSERT_NO_FATAL_FAILURE(expect_outcomes(operations, world.run_in_steps(operations, random_)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExchangeOn, testing::ValuesIn(kLayouts),
                         [](const auto& parameters) { return name_of_layout(parameters.param); });

}  // namespace
}  // namespace hora::internal
