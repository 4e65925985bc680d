// Outputs in memory of the caller's that are refused; Differential has what arrives in them.
#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Integers = std::vector<std::int32_t>;
using testing::AllOf;
using testing::HasSubstr;

using Into = Conformance;

TEST_F(Into, AnOutputOfAnotherLengthIsAnErrorAndTheNextCollectiveIsRight) {
  const Integers own(3, rank());
  const auto n = static_cast<std::size_t>(size());
  for (const std::size_t wrong : {3 * n + 1, 3 * n - 1}) {
    for (int round = 0; round < 2; ++round) {
      // Wrong on the first rank alone.
      Integers output(rank() == 0 ? wrong : 3 * n, -1);
      const auto submit = [&] {
        allgather_into(world(), placed(own), placed(output), {.name = "x"});
      };
      if (rank() == 0) {
        const Error error =
            expect_error(ErrorCode::invalid_argument,
                         AllOf(HasSubstr("\"x\""), HasSubstr(std::to_string(wrong) + " elements"),
                               HasSubstr("the result " + std::to_string(3 * n))),
                         submit);
        EXPECT_EQ(error.tensor(), "x");
        EXPECT_EQ(output, Integers(wrong, -1));
      } else {
        submit();
        EXPECT_EQ(output.back(), size() - 1);
      }
      Integers right(3 * n);
      allgather_into(world(), placed(own), placed(right), {.name = "x"});
      EXPECT_EQ(right.back(), size() - 1);
    }
  }
  // Every rank knows the length of its part of a reduce-scatter.
  Integers part(static_cast<std::size_t>(rank() < 3 % size() ? 3 / size() + 2 : 3 / size() + 1));
  expect_error(ErrorCode::invalid_argument, HasSubstr("they must be as many"), [&] {
    reduce_scatter_into(world(), placed(own), placed(part), {.name = "y", .op = ReduceOp::sum});
  });
}

TEST_F(Into, WhatCanNeverBeRightIsRefusedAtOnce) {
  Integers values(static_cast<std::size_t>(2 * size()), rank());
  std::vector<float> floats(static_cast<std::size_t>(size()));
  std::vector<std::int32_t> host(static_cast<std::size_t>(size()));
  const Placed all = placed(values), of_floats = placed(floats);
  TensorView own = all;
  own.shape = {1};
  TensorView output = all;
  output.shape = {size()};
  const auto refused = [&](const TensorView& wrong, const std::string& text) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(text),
                 [&] { allgather_into(world(), own, wrong, {.name = "x"}); });
  };
  refused(of_floats, "output is of float32");
  refused(output, "overlaps");
  output.data = nullptr;
  refused(output, "null");
  TensorView elsewhere = view(host);
  if (!on_device()) elsewhere.device = {DeviceKind::cuda, 0};
  refused(elsewhere, on_device() ? "output is on cpu" : "output is on cuda");
  barrier(world());
}

}  // namespace
}  // namespace hora::internal::test
