#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "tests/core/engine/engine_fixture.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

Signature floats(std::int64_t count) {
  Signature signature;
  signature.op = ReduceOp::sum;
  signature.shape = {count};
  return signature;
}

/// The sum over the set's ranks of (rank + 1) in every element.
void expect_sum(Engine& engine, ProcessSet set, int rank, const std::string& name,
                std::size_t count) {
  std::vector<float> values(count, static_cast<float>(rank + 1));
  engine.submit_and_wait(
      {name, floats(static_cast<std::int64_t>(count)), reinterpret_cast<std::byte*>(values.data())},
      set);
  float expected = 0;
  for (const int member : engine.ranks_of(set)) expected += static_cast<float>(member + 1);
  for (const float value : values) ASSERT_EQ(value, expected) << name << " on rank " << rank;
}

std::string text_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "expected an error";
  return {};
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

class ProcessSetsOnLayouts : public test::OnLayouts {
 protected:
  std::vector<int> ranks_where(const std::function<bool(int)>& chosen) {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_.size(); ++rank) {
      if (chosen(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
};

// Random overlapping sets, each used by a thread of its own on every rank, in crossed orders.
TEST_P(ProcessSetsOnLayouts, OverlappingSetsAreActiveAtOnce) {
  constexpr int kSets = 4;
  std::mt19937_64 random(test::seed());
  std::vector<std::vector<int>> sets;
  while (sets.size() < kSets) {
    auto ranks = ranks_where([&](int) { return random() % 3 != 0; });
    if (!ranks.empty()) sets.push_back(std::move(ranks));
  }
  on_all_ranks([&](int rank, Engine& engine) {
    std::vector<std::jthread> threads;
    for (const auto& ranks : sets) {
      const ProcessSet set = engine.add_set(ranks);
      EXPECT_EQ(engine.ranks_of(set), ranks);
      if (!contains(ranks, rank)) continue;
      threads.emplace_back([&engine, set, rank] {
        for (int round = 0; round < 30; ++round) {
          expect_sum(engine, set, rank, "a" + std::to_string(round % 3), 1 + 100 * (round % 7));
        }
      });
    }
    for (int round = 0; round < 30; ++round) expect_sum(engine, kWorld, rank, "a", 77);
  });
}

TEST_P(ProcessSetsOnLayouts, DifferentListsAreTheSameErrorEverywhere) {
  if (world_.size() < 2) return;  // one rank agrees with itself
  std::vector<std::string> texts(static_cast<std::size_t>(world_.size()));
  on_all_ranks([&](int rank, Engine& engine) {
    texts[static_cast<std::size_t>(rank)] = text_of(
        [&] {
          engine.add_set(rank == 0 ? std::vector{0} : std::vector{0, 1});
        },
        ErrorCode::mismatch);
    EXPECT_EQ(engine.add_set({1}), ProcessSet(1));
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts.front());
}

TEST_P(ProcessSetsOnLayouts, RemovedSetsTakeNothingAndLeaveTheOthersAlone) {
  on_all_ranks([&](int rank, Engine& engine) {
    const auto all = ranks_where([](int) { return true; });
    for (std::uint32_t expected = 1; expected < 6; expected += 2) {
      const ProcessSet first = engine.add_set(all);
      const ProcessSet second = engine.add_set(all);
      EXPECT_EQ(first, ProcessSet(expected));
      expect_sum(engine, first, rank, "x", 10);
      engine.remove_set(first);
      text_of([&] { expect_sum(engine, first, rank, "x", 10); }, ErrorCode::invalid_argument);
      text_of([&] { engine.remove_set(first); }, ErrorCode::invalid_argument);
      text_of([&] { engine.ranks_of(first); }, ErrorCode::invalid_argument);
      expect_sum(engine, second, rank, "x", 10);
    }
    text_of([&] { engine.remove_set(kWorld); }, ErrorCode::invalid_argument);
  });
}

TEST_P(ProcessSetsOnLayouts, ASetInUseIsNotRemoved) {
  on_all_ranks([&](int rank, Engine& engine) {
    const auto all = ranks_where([](int) { return true; });
    const ProcessSet set = engine.add_set(all);
    std::vector<float> values(10, 1.0F);
    const auto open =
        engine.submit({"x", floats(10), reinterpret_cast<std::byte*>(values.data())}, set);
    text_of([&] { engine.remove_set(set); }, ErrorCode::invalid_use);
    engine.wait(*open);
    EXPECT_EQ(values.front(), static_cast<float>(world_.size()));
    engine.remove_set(set);
    expect_sum(engine, kWorld, rank, "x", 10);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, ProcessSetsOnLayouts,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{3, 2},
                                         std::vector{1, 2, 1}),
                         test::layout_name);

}  // namespace
}  // namespace hora::internal
