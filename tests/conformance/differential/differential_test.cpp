// Random programs of collectives against a serial model. TEST_PROGRAMS says how many (60 without
// it); TEST_PROGRAM=<seed> runs that one alone.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/conformance/differential/runner.h"
#include "tests/conformance/ranks.h"
#include "tests/support/random_draws.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

TEST(Differential, ProgramsDoWhatTheModelSays) {
  const auto [rank, ranks] = Ranks::place();
  const auto only = number_in("TEST_PROGRAM");
  const std::uint64_t count = only ? 1 : number_in("TEST_PROGRAMS").value_or(60);
  auto seeds = generator();
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t seed = only.value_or(seeds());
    const std::string again = "TEST_PROGRAM=" + std::to_string(seed);
    if (rank == 0) {  // before it runs, for one that never ends
      std::printf("Program %llu: %s\n", static_cast<unsigned long long>(i), again.c_str());
      std::fflush(stdout);
    }
    const Program program = draw_program(seed, ranks);
    const std::string wrong = run_program(program);
    EXPECT_EQ(wrong, "") << "Repeat with " << again;
  }
}

TEST(Differential, EveryOperationOfEveryTypeAndShapeDoesWhatTheModelSays) {
  for (const DataType type : kAllTypes) {
    EXPECT_EQ(run_program(every_operation(type, Ranks::place().second)), "") << name_of(type);
  }
}

}  // namespace
}  // namespace hora::internal::test
