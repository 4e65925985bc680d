// Process sets that hora begins with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>

#include "ops/context/node_discovery.h"
#include "tests/ops/context/world.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SetsDisagreement, NamesRanksAndBothLists) {
  EXPECT_EQ(sets_disagreement({"[0]"}), "");
  EXPECT_EQ(sets_disagreement({"[0] [1]", "[0] [1]", "[0] [1]"}), "");
  EXPECT_THAT(sets_disagreement({"[0 1]", "[0 1]", "none"}),
              AllOf(HasSubstr("rank 0 has [0 1]"), HasSubstr("rank 2 has none")));
}

int size_of_world() {
  const Context world = init();
  return world.size();
}

std::vector<int> every_second(int first, int size) {
  std::vector<int> ranks;
  for (int rank = first; rank < size; rank += 2) ranks.push_back(rank);
  return ranks;
}

TEST(InitialSets, AreNumberedInTheirOrderAndWork) {
  const int size = size_of_world();
  std::vector<std::vector<int>> sets = {every_second(0, size), {size - 1, 0}};
  if (size == 1) sets.back() = {0};
  if (size > 1) sets.push_back(every_second(1, size));
  for (const bool engine_thread : {true, false}) {
    const Context world = init({.engine_thread = engine_thread, .process_sets = sets});
    EXPECT_EQ(ranks_of(world, ProcessSet(1)), sets.front());
    for (std::uint32_t number = 1; number <= sets.size(); ++number) {
      const ProcessSet set(number);
      if (rank_in(world, set) < 0) continue;
      std::int32_t value = world.rank() + 1;
      allreduce(world, view(&value, 1), {.name = "x", .op = ReduceOp::sum, .process_set = set});
      std::int32_t expected = 0;
      for (const int rank : ranks_of(world, set)) expected += rank + 1;
      EXPECT_EQ(value, expected) << "set " << set;
    }
    EXPECT_EQ(add_process_set(world, {0}).number(), sets.size() + 1)
        << "those of later come behind";
  }
}

/// Starts hora with these sets, which is the same error on every rank, and then without.
void expect_refused(const std::vector<std::vector<int>>& sets, ErrorCode code,
                    const std::string& text) {
  expect_error(code, HasSubstr(text), [&] { const Context world = init({.process_sets = sets}); });
  const Context world = init();
  std::int32_t one = 1;
  allreduce(world, view(&one, 1), {.name = "next", .op = ReduceOp::sum});
  EXPECT_EQ(one, world.size());
}

TEST(InitialSets, ThatDoNotExistAreAnErrorEverywhere) {
  const int size = size_of_world();
  expect_refused({{0}, {}}, ErrorCode::invalid_argument, "at least one rank");
  expect_refused({{0, size}}, ErrorCode::invalid_argument, "does not exist");
  expect_refused({{0, 0}}, ErrorCode::invalid_argument, "twice");
}

TEST(InitialSets, ThatDifferAreTheSameErrorEverywhere) {
  int size = 0;
  int rank = 0;
  {
    const Context world = init();
    size = world.size();
    rank = world.rank();
  }
  if (size == 1) return;  // no rank to differ from
  std::vector<std::vector<int>> sets = {{0, 1}};
  if (rank == size - 1) sets.push_back({0});  // more of them: the others would wait for ever
  const std::string last = std::to_string(size - 1);
  expect_refused(sets, ErrorCode::mismatch, "rank " + last + " has [0 1] [0]");
}

}  // namespace
}  // namespace hora::internal::test
