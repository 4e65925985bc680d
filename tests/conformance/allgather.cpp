#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Allgather = Conformance;

TEST_F(Allgather, AScalarIsARow) {
  std::int32_t own = 10 + rank();
  const Result result = allgather(world(), placed(own), {.name = "scalar"});
  ASSERT_EQ(result.shape(), Shape{size()});
  for (int r = 0; r < size(); ++r) {
    EXPECT_EQ(elements_of<std::int32_t>(result)[static_cast<std::size_t>(r)], 10 + r);
  }
}

// A rank that shares its node finds this where it submits, one alone when all sizes are known.
TEST_F(Allgather, MoreThanThereIsMemoryFailsAlone) {
  if (on_device()) GTEST_SKIP() << "a fake device has no less memory than is asked for";
  if (!world().is_homogeneous()) return;
  float memory[17] = {};
  for (const std::int64_t bytes : {std::int64_t{1} << 44, std::int64_t{1} << 48}) {
    expect_error(ErrorCode::out_of_memory,
                 [&] { (void)allgather(world(), view(memory, bytes / 4), {.name = "claimed"}); });
    const Result all = allgather(world(), view(memory, 17), {.name = "claimed"});
    EXPECT_EQ(all.shape(), Shape{17 * size()});
  }
}

TEST_F(Allgather, ResultsOutliveTheirSuccessors) {
  std::vector<Result> results;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::int32_t> own(17, round * 10 + rank());
    results.push_back(allgather(world(), placed(own.data(), 17), {.name = "kept"}));
  }
  for (int round = 0; round < 20; ++round) {
    const auto values = elements_of<std::int32_t>(results[static_cast<std::size_t>(round)]);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], round * 10 + static_cast<int>(i / 17));
    }
  }
  expect_error(ErrorCode::invalid_argument, [&] { (void)results.front().values<float>(); });
  expect_error(ErrorCode::invalid_use, [] { (void)Result().shape(); });
}

}  // namespace
}  // namespace hora::internal::test
