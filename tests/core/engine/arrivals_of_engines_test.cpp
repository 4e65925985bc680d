// Who came last, seen through whole engines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/core/engine/engine_fixture.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::floats;
using test::on_all_ranks;
using test::ThreadWorld;
using testing::HasSubstr;
using testing::IsEmpty;

class ArrivalsOnLayouts : public test::EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Layouts, ArrivalsOnLayouts,
                         testing::Values(std::vector{3}, std::vector{1, 1, 1}, std::vector{2, 2},
                                         std::vector{1, 2, 1}),
                         test::layout_name);

TEST_P(ArrivalsOnLayouts, TheRootNamesTheRankThatIsLate) {
  constexpr int kRounds = 20;
  ThreadWorld world(options());
  const int late = world.size() - 1;
  on_all_ranks(world, [&](int rank) {
    std::vector<float> values(8, 1.0F);
    for (int i = 0; i < kRounds; ++i) {
      if (rank == late) std::this_thread::sleep_for(20ms);
      world.engine(rank).submit_and_wait("g", floats(8), bytes(values));
    }
  });
  for (int rank = 0; rank < world.size(); ++rank) world.engine(rank).stop();
  const std::string text = world.engine(0).arrivals_text();
  // The first time negotiates the name.
  EXPECT_THAT(text, HasSubstr("of 19, "));
  EXPECT_THAT(text, HasSubstr("before:\n  rank " + std::to_string(late) + ": 100 %, median "));
  EXPECT_THAT(world.engine(late).arrivals_text(), IsEmpty()) << "the root alone knows";
}

}  // namespace
}  // namespace hora::internal
