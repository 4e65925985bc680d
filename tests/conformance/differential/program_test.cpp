#include "tests/conformance/differential/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tests/conformance/tensors.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

class Programs : public testing::TestWithParam<int> {
 protected:
  void for_many(const std::function<void(const Program&)>& body) {
    auto seeds = generator();
    for (int i = 0; i < 200; ++i) body(draw_program(seeds(), GetParam()));
  }
};

TEST_P(Programs, EveryMemberRunsEachOperationOnceFromStartToWait) {
  for_many([&](const Program& program) {
    for (int rank = 0; rank < program.ranks; ++rank) {
      std::set<std::size_t> open, done;
      std::set<std::pair<std::size_t, std::string>> names;
      for (const Step& step : schedule(program, rank)) {
        const Operation& operation = program.operations[step.operation];
        ASSERT_GE(place_in(program.sets[operation.set], rank), 0);
        const auto name = std::make_pair(operation.set, operation.name);
        ASSERT_EQ(operation.blocking, step.action == Step::Action::run);
        if (step.action != Step::Action::wait) {
          EXPECT_TRUE(names.insert(name).second) << "in flight already: " << operation.name;
          EXPECT_TRUE(open.insert(step.operation).second);
        }
        if (step.action != Step::Action::start) {
          EXPECT_EQ(open.erase(step.operation), 1U);
          EXPECT_TRUE(done.insert(step.operation).second);
          names.erase(name);
        }
      }
      EXPECT_TRUE(open.empty());
      const auto own = std::count_if(
          program.operations.begin(), program.operations.end(),
          [&](const Operation& o) { return place_in(program.sets[o.set], rank) >= 0; });
      EXPECT_EQ(static_cast<std::ptrdiff_t>(done.size()), own);
    }
  });
}

TEST_P(Programs, AnOddRankIsAMemberAndDiffers) {
  for_many([&](const Program& program) {
    for (const Operation& operation : program.operations) {
      if (!operation.is_disputed()) continue;
      const auto& set = program.sets[operation.set];
      ASSERT_GT(set.size(), 1U) << "no other rank to disagree with";
      for (std::size_t place = 0; place < set.size(); ++place) {
        const Operation own = operation.submitted_by(set[place]);
        const bool same = own.type == operation.type && own.op == operation.op &&
                          own.shape(place).size() == operation.shape(place).size();
        EXPECT_EQ(same, set[place] != operation.odd_rank);
        EXPECT_EQ(count_of(own.shape(place)), count_of(operation.shape(place)));
      }
      EXPECT_GE(place_in(set, operation.odd_rank), 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Programs, testing::Values(1, 2, 3, 4));

TEST(ManyPrograms, HoldWhatTheyAreMeantTo) {
  std::set<Kind> kinds;
  std::set<DataType> types;
  std::set<Oddness> oddnesses;
  bool overlapping = false, unnamed = false, crossed = false;
  auto seeds = generator();
  for (int i = 0; i < 200; ++i) {
    const Program program = draw_program(seeds(), 4);
    for (const Operation& operation : program.operations) {
      kinds.insert(operation.kind);
      types.insert(operation.type);
      unnamed |= operation.name.empty();
      if (operation.is_disputed()) oddnesses.insert(operation.oddness);
    }
    overlapping |= program.sets.size() > 2 && program.sets[1] != program.sets[2];
    crossed |= schedule(program, 0) != schedule(program, 1);
  }
  EXPECT_EQ(kinds.size(), std::size(kKinds));
  EXPECT_EQ(types.size(), std::size(kAllTypes));
  EXPECT_EQ(oddnesses.size(), 3U);
  EXPECT_TRUE(overlapping && unnamed && crossed);
}

}  // namespace
}  // namespace hora::internal::test
