#include "bench/collectives_perf/operation.h"

#include <gtest/gtest.h>

#include <vector>

#include "bench/harness/timed_loop.h"

namespace bench {
namespace {

constexpr std::uint32_t round_number = 12;

std::vector<float> written(std::size_t count, int rank) {
  std::vector<float> values(count);
  write_values(values.data(), count, rank, round_number);
  return values;
}

// By the definition of each collective.
std::vector<float> result_of(Operation operation, std::size_t count, int rank, int ranks) {
  const std::size_t part = count / static_cast<std::size_t>(ranks);
  const std::size_t own = static_cast<std::size_t>(rank) * part;
  const std::size_t input = extents_of(operation, count, ranks).input;
  if (operation == Operation::broadcast) return written(input, root);
  std::vector<float> result;
  if (operation == Operation::reduce_scatter) result.assign(part, 0.0F);
  for (int from = 0; from < ranks; ++from) {
    const auto values = written(input, from);
    if (operation == Operation::allgather) {
      result.insert(result.end(), values.begin(), values.end());
    } else if (operation == Operation::alltoall) {
      result.insert(result.end(), values.data() + own, values.data() + own + part);
    } else {
      for (std::size_t i = 0; i < part; ++i) result[i] += values[own + i];
    }
  }
  return result;
}

TEST(Operation, ResultsByTheirDefinitionAreRight) {
  for (const Operation operation : all_operations) {
    for (const int ranks : {1, 2, 3, 4}) {
      const std::size_t count = 300 * static_cast<std::size_t>(ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(name_of(operation) + " on rank " + std::to_string(rank));
        auto result = result_of(operation, count, rank, ranks);
        ASSERT_EQ(result.size(), extents_of(operation, count, ranks).result);
        const auto wrong = [&] {
          return count_wrong(operation, result.data(), count, rank, ranks, round_number);
        };
        EXPECT_EQ(wrong(), 0);
        result.front() += 1.0F;
        result.back() -= 1.0F;
        EXPECT_EQ(wrong(), 2);
      }
    }
  }
}

TEST(Operation, BusBandwidthIsThatOfNcclTests) {
  EXPECT_EQ(bus_factor(Operation::broadcast, 4), 1.0);
  EXPECT_EQ(bus_factor(Operation::allgather, 4), 0.75);
}

}  // namespace
}  // namespace bench
