#include "bench/harness/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace bench {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::vector<Bar> bars{{"hora_bucket", "vs_mpi", {"mpi", "mpi_out_of_place"}, 0.8, 64 * kib},
                            {"hora", "vs_mpi", {"mpi"}, 1.5, 1 * mib},
                            {"hora_bucket", "vs_mpi", {"mpi"}, 3.0, 1 * mib, 4 * mib}};

Blocks took(double seconds) {
  return {{seconds}, {seconds}};
}

TEST(Comparison, TheFasterPeerCounts) {
  const auto ratios = ratios_of(
      bars, {{"hora_bucket", took(1.0)}, {"mpi", took(4.0)}, {"mpi_out_of_place", took(3.5)}});
  EXPECT_EQ(ratios, (Ratios{{"hora_bucket vs_mpi", 3.5}}));
  EXPECT_EQ(ratios_of_contender(ratios, "hora_bucket"), (Ratios{{"vs_mpi", 3.5}}));
  EXPECT_EQ(ratios_of_contender(ratios, "hora"), Ratios{});
}

TEST(Comparison, MarksWhatIsBelowItsBarWhereTheBarHolds) {
  const auto table = [](std::size_t bytes, double ratio, bool judge) {
    return table_of_ratios("op", bars, {{bytes, {{"hora_bucket vs_mpi", ratio}}}}, judge);
  };
  EXPECT_THAT(table(64 * kib, 0.79, true), HasSubstr("*0.79"));
  EXPECT_THAT(table(64 * kib, 0.80, true), Not(HasSubstr("*0.80")));
  EXPECT_THAT(table(64 * kib - 1, 0.79, true), Not(HasSubstr("*0.79")));
  EXPECT_THAT(table(64 * kib, 0.79, false), Not(HasSubstr("*0.79")));
}

TEST(Comparison, SeveralBarsOfOneRatioShareAColumn) {
  const auto table = [](std::size_t bytes) {
    return table_of_ratios("op", bars, {{bytes, {{"hora_bucket vs_mpi", 2.9}}}}, true);
  };
  EXPECT_THAT(table(64 * kib), HasSubstr("(>= 0.8, 3)"));
  EXPECT_THAT(table(64 * kib), Not(HasSubstr("*2.90")));
  EXPECT_THAT(table(1 * mib), HasSubstr("*2.90"));
  EXPECT_THAT(table(5 * mib), Not(HasSubstr("*2.90")));
}

}  // namespace
}  // namespace bench
