#include <algorithm>
#include <memory>
#include <thread>

#include "tests/conformance/conformance.h"
#include "tests/conformance/family.h"

namespace hora::internal::test {
namespace {

class ProcessSets : public Conformance {
 protected:
  bool in(ProcessSet set) { return rank_in(context(), set) >= 0; }

  /// Every set of ranks but the empty one, as bits.
  std::vector<ProcessSet> add_all_subsets() {
    std::vector<ProcessSet> sets;
    for (int bits = 1; bits < 1 << size(); ++bits) {
      std::vector<int> ranks;
      for (int r = 0; r < size(); ++r) {
        if ((bits >> r) % 2 == 1) ranks.push_back(r);
      }
      sets.push_back(add_process_set(world(), ranks));
    }
    return sets;
  }
};

TEST_F(ProcessSets, KnowTheirRanks) {
  std::vector<int> descending;
  for (int r = size() - 1; r >= 0; r -= 2) descending.push_back(r);
  const ProcessSet set = add_process_set(world(), descending);
  std::vector<int> ascending = descending;
  std::reverse(ascending.begin(), ascending.end());
  EXPECT_EQ(ranks_of(context(), set), ascending);
  EXPECT_EQ(size_of(context(), set), static_cast<int>(ascending.size()));
  const auto position = std::find(ascending.begin(), ascending.end(), rank());
  EXPECT_EQ(rank_in(context(), set),
            position == ascending.end() ? -1 : static_cast<int>(position - ascending.begin()));
  EXPECT_EQ(size_of(context(), kWorld), size());
  EXPECT_EQ(rank_in(context(), kWorld), rank());
  remove_process_set(world(), set);
  for (const ProcessSet gone : {set, ProcessSet{9}}) {
    expect_error(ErrorCode::invalid_argument, [&] { (void)ranks_of(context(), gone); });
    expect_error(ErrorCode::invalid_argument, [&] { (void)size_of(context(), gone); });
    expect_error(ErrorCode::invalid_argument, [&] { (void)rank_in(context(), gone); });
  }
}

/// Rank 0 waits on one set for the others, they on another for it, until each submits there, too.
TEST_F(ProcessSets, OneNameMayWaitCrosswiseOnTwo) {
  const ProcessSet all = add_process_set(world(), ranks_of(context(), kWorld));
  for (int round = 0; round < 3; ++round) {
    std::vector<std::int32_t> of_world(10, rank()), of_set(10, rank());
    Placed world_tensor = placed(of_world), set_tensor = placed(of_set);
    const auto start = [&](bool in_world) {
      return allreduce_async(world(), in_world ? world_tensor : set_tensor,
                             {.name = "x",
                              .op = in_world ? ReduceOp::sum : ReduceOp::max,
                              .process_set = in_world ? kWorld : all});
    };
    Handle first = start(rank() == 0);
    barrier(world());  // each rank has submitted the one, and none the other
    Handle second = start(rank() != 0);
    first.wait();
    second.wait();
    world_tensor.take_back();
    set_tensor.take_back();
    EXPECT_EQ(of_world, std::vector<std::int32_t>(10, size() * (size() - 1) / 2));
    EXPECT_EQ(of_set, std::vector<std::int32_t>(10, size() - 1));
  }
}

TEST_F(ProcessSets, EachThreadMayUseOneOfItsOwn) {
  auto sets = add_all_subsets();
  sets.push_back(kWorld);
  std::vector<std::jthread> threads;
  for (const ProcessSet set : sets) {
    if (!in(set)) continue;
    threads.emplace_back([&own = here(), set] {
      for (int round = 0; round < 5; ++round) {
        for (const Family& family : families()) family.run(own, family.name, set);
      }
    });
  }
  threads.clear();
  barrier(world());
}

TEST_F(ProcessSets, ListsThatCanNeverBeRightAreRefusedAtOnce) {
  for (const std::vector<int>& ranks :
       {std::vector<int>{}, {0, 0}, {-1}, {size()}, {0, size() + 5}}) {
    expect_error(ErrorCode::invalid_argument, [&] { (void)add_process_set(world(), ranks); });
  }
  families().front().run(this_member(), "x", add_process_set(world(), ranks_of(context(), kWorld)));
}

TEST_F(ProcessSets, DifferentListsAreTheSameErrorOnEveryRank) {
  if (size() == 1) return;
  for (int odd = 0; odd < size(); ++odd) {
    const std::vector<int> ranks = rank() == odd ? std::vector<int>{0} : std::vector<int>{0, 1};
    const std::string text =
        expect_error(ErrorCode::mismatch, [&] { (void)add_process_set(world(), ranks); }).what();
    EXPECT_NE(text.find("[0, 1]"), std::string::npos) << text;
    expect_same_text(text);
  }
  const ProcessSet set = add_process_set(world(), {0, 1});
  if (in(set)) families().front().run(this_member(), "x", set);
  barrier(world());
}

TEST_F(ProcessSets, ComeAndGoManyTimes) {
  ProcessSet before = kWorld;
  for (int round = 0; round < 20; ++round) {
    const ProcessSet set = add_process_set(world(), {round % size()});
    EXPECT_GT(set, before) << "a number is used once";
    before = set;
    if (in(set)) families()[static_cast<std::size_t>(round) % 6].run(this_member(), "x", set);
    remove_process_set(world(), set);
    expect_error(ErrorCode::invalid_argument, [&] { remove_process_set(world(), set); });
  }
  expect_error(ErrorCode::invalid_argument, [&] { remove_process_set(world(), kWorld); });
  expect_error(ErrorCode::invalid_argument, [&] { remove_process_set(world(), ProcessSet(99)); });
}

TEST_F(ProcessSets, OneInUseIsNotRemoved) {
  const ProcessSet all = add_process_set(world(), ranks_of(context(), kWorld));
  float value = 1.0F;
  const Placed tensor = placed(value);
  Handle handle = allreduce_async(world(), tensor, {.name = "x", .process_set = all});
  expect_error(ErrorCode::invalid_use, [&] { remove_process_set(world(), all); });
  handle.wait();
  remove_process_set(world(), all);
}

/// Its members need nothing of a rank that is not one of them.
TEST_F(ProcessSets, GoOnWhenARankOutsideHasLeft) {
  if (size() == 1) return;
  std::vector<int> staying;
  for (int r = 0; r + 1 < size(); ++r) staying.push_back(r);
  const ProcessSet set = add_process_set(world(), staying);
  if (!in(set)) return context().shutdown();
  expect_error(ErrorCode::shut_down, [&] { families().front().run(this_member(), "x", kWorld); });
  for (const Family& family : families()) family.run(this_member(), family.name, set);
}

}  // namespace
}  // namespace hora::internal::test
