// Ready bits in several words, in every order of every access.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>

#include "core/control_block/ready_words.h"
#include "tests/core/control_block/model_control_blocks.h"
#include "tests/support/model/explorer.h"

namespace hora::internal {
namespace {

using model::Program;
using test::Memory;
using Arrival = ReadyWords::Arrival;

/// A word for each of up to three ranks; the last arriver alone writes `ran`.
struct Words {
  Atomic<std::uint64_t> first;
  std::array<Atomic<std::uint64_t>, 2> others;
  Plain<int> ran;

  static Words* fresh() {
    static_assert(sizeof(Words) <= Memory::kBytes);
    return reinterpret_cast<Words*>(Memory::fresh());
  }
  ReadyWords of(std::uint32_t generation, int local_size) {
    return {{first, others.data()}, generation, local_size, 1};
  }
};

/// Every rank arrives, round by round; whoever is told so ends the round.
Program arrivals(int ranks, int rounds) {
  auto* const words = Words::fresh();
  const auto of_id = [=] { return words->of(0, ranks); };
  Program program;
  for (int rank = 0; rank < ranks; ++rank) {
    program.threads.emplace_back([=] {
      for (int round = 0; round < rounds; ++round) {
        if (of_id().arrive(rank) == Arrival::complete) {
          words->ran = words->ran + 1;
          of_id().end_round();
        }
        const bool is_last = round + 1 == rounds;
        while (!is_last && of_id().ranks()[static_cast<std::size_t>(rank)]) model::spin();
      }
    });
  }
  program.at_end = [=] {
    if (words->ran != rounds) model::fail("not one completion a round");
    if (of_id().ranks().any()) model::fail("ready after the last round");
  };
  return program;
}

TEST(ReadyWordsModel, OneOfThoseThatArriveAtOnceCompletesIt) {
  const auto three = [] { return arrivals(3, 1); };
  const auto outcome = model::explore(three);
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 10u);
  // Each fills its word, and then must see those of the others.
  bool any = false;
  for (const void* word : outcome.words) {
    any |= model::explore(three, {.without_total_order = {word}}).failure.has_value();
  }
  EXPECT_TRUE(any) << "of " << outcome.words.size() << " words";
}

// Who saw all words full, and was overtaken by another claim and a whole round, claims nothing.
TEST(ReadyWordsModel, RoundsThatFollowEachOtherCompleteOnceEach) {
  const auto outcome = model::explore([] { return arrivals(2, 2); });
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 10u);
}

TEST(ReadyWordsModel, ALookWhileTheRoundEndsSeesAllOrNobody) {
  const auto outcome = model::explore([] {
    auto* const words = Words::fresh();
    return Program{.threads = {[=] { words->of(0, 3).end_round(); },
                               [=] {
                                 const std::size_t seen = words->of(0, 3).ranks().count();
                                 if (seen != 0 && seen != 3) model::fail("a part of all");
                               }},
                   .at_begin =
                       [=] {
                         for (const int rank : {0, 1, 2}) words->of(0, 3).arrive(rank);
                       },
                   .at_end = {}};
  });
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 1u);
}

// A rank that arrives in the second word, while the leader gives the id up: complete, or given up.
TEST(ReadyWordsModel, AnIdIsCompleteOrGivenUp) {
  const auto outcome = model::explore([] {
    auto* const words = Words::fresh();
    auto complete = std::make_shared<int>(0);
    auto given_up = std::make_shared<bool>(false);
    const auto arrive = [=](int rank) {
      if (words->of(0, 2).arrive(rank) == Arrival::complete) {
        ++*complete;
        words->of(0, 2).end_round();
      }
    };
    return Program{.threads = {[=] { arrive(0); }, [=] { arrive(1); },
                               [=] {
                                 *given_up = words->of(0, 2).retire(false);
                                 if (*given_up && words->of(1, 2).ranks().any()) {
                                   model::fail("ready for the next id");
                                 }
                               }},
                   .at_end = [=] {
                     const bool is_next = words->of(1, 2).is_current();
                     if (*given_up != is_next) model::fail("given up, and not the next id");
                     if (!*given_up && *complete != 1) model::fail("neither");
                     if (words->of(1, 2).ranks().any()) model::fail("ready for the next id");
                   }};
  });
  EXPECT_EQ(outcome.failure, std::nullopt);
  EXPECT_GT(outcome.executions, 10u);
}

}  // namespace
}  // namespace hora::internal
