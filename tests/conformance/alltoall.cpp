#include <limits>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Alltoall = Conformance;

TEST_F(Alltoall, SplitsThatDoNotFitAreRefusedAtOnce) {
  std::vector<float> values(static_cast<std::size_t>(3 * size()), 1.0F);
  const auto refused = [&](Shape shape, std::vector<std::int64_t> splits,
                           const std::string& why = {}) {
    expect_error(ErrorCode::invalid_argument, testing::HasSubstr(why), [&] {
      (void)alltoall(world(), placed(values.data(), shape), {.name = "x", .splits = splits});
    });
  };
  const auto ranks = static_cast<std::size_t>(size());
  const Shape fits = {3 * size()};
  std::vector<std::int64_t> splits(ranks, 3);
  const std::string rows = std::to_string(3 * size());
  splits.back() = 4;
  refused(fits, splits,
          "add up to " + std::to_string(3 * size() + 1) + " rows, and the tensor has " + rows);
  splits.back() = 2;
  refused(fits, splits);
  splits.back() = -3;
  refused(fits, splits, "split " + std::to_string(size() - 1) + " is -3 rows");
  splits.back() = std::numeric_limits<std::int64_t>::max();
  refused(fits, splits);
  refused(fits, std::vector<std::int64_t>(ranks + 1, 3));
  refused(fits, std::vector<std::int64_t>(ranks, 0));
  if (size() > 1) {
    refused(fits, std::vector<std::int64_t>(ranks - 1, 3));
    refused({2 * size() + 1}, {});  // no even division
  }
  refused({}, {});
  refused({}, std::vector<std::int64_t>(ranks, 1));
  const Result result = alltoall(world(), placed(values.data(), fits), {.name = "x"});
  EXPECT_EQ(result.rows(), std::vector<std::int64_t>(ranks, 3));
}

}  // namespace
}  // namespace hora::internal::test
