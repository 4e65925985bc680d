// Tensors that are reduced in a narrower type than they have.
#include <gtest/gtest.h>
#include <hora/torch.h>

#include "tests/frameworks/torch/averaging_model.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

class CompressedAllreduce : public testing::TestWithParam<Compression> {
 protected:
  torch::ScalarType wire() const {
    return GetParam() == Compression::float16 ? torch::kHalf : torch::kBFloat16;
  }
  /// Any rank's, known to all. What a float32 holds: LibTorch rounds float64 by way of it.
  static torch::Tensor values_of(int rank, torch::ScalarType type) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(rank));
    return torch::randn({17, 3}, torch::kFloat).to(type);
  }
  torch::Tensor expected(torch::ScalarType type) const {
    return average_model(world_, [&](int rank) { return values_of(rank, type).to(wire()); })
        .to(type);
  }

  const Context world_ = init();
};

TEST_P(CompressedAllreduce, AveragesAreThoseOfTheWireTypeToTheBit) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const auto own = values_of(world_.rank(), type);
    const auto average = allreduce(world_, own, {.name = "one"}, GetParam());
    EXPECT_EQ(average.scalar_type(), type);
    EXPECT_TRUE(torch::equal(average, expected(type)));
    EXPECT_TRUE(torch::equal(own, values_of(world_.rank(), type)));
    // Transposed memory, too.
    EXPECT_TRUE(torch::equal(allreduce(world_, own.t(), {}, GetParam()), expected(type).t()));
  }
}

TEST_P(CompressedAllreduce, OfAGroupIsThatOfItsMembers) {
  const std::vector<torch::Tensor> own = {values_of(world_.rank(), torch::kFloat),
                                          torch::full({4}, world_.rank(), torch::kLong),
                                          values_of(world_.rank(), torch::kDouble)};
  const auto sums = grouped_allreduce(world_, own, {.op = ReduceOp::sum}, GetParam());
  ASSERT_EQ(sums.size(), own.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(
        torch::equal(sums[i], allreduce(world_, own[i], {.op = ReduceOp::sum}, GetParam())));
  }
  EXPECT_TRUE(torch::equal(own[1], torch::full({4}, world_.rank(), torch::kLong)));
}

TEST_P(CompressedAllreduce, IntegersAndWhatIsAsNarrowTravelAsTheyAre) {
  // Too large for float16 and bfloat16 to tell from its neighbours.
  const auto integer = torch::full({3}, 123457, torch::kInt);
  EXPECT_TRUE(torch::equal(allreduce(world_, integer, {.op = ReduceOp::sum}, GetParam()),
                           integer * world_.size()));
  for (const auto narrow : {torch::kHalf, torch::kBFloat16}) {
    const auto own = values_of(world_.rank(), narrow);
    EXPECT_TRUE(torch::equal(allreduce(world_, own, {}, GetParam()), allreduce(world_, own)));
  }
}

TEST_P(CompressedAllreduce, GradientsGoBack) {
  const auto one = torch::full({5}, 2.0, torch::requires_grad());
  const auto other = torch::full({5}, 3.0, torch::dtype(torch::kDouble).requires_grad(true));
  const AllreduceOptions sum{.name = "sum", .op = ReduceOp::sum};
  (allreduce(world_, one, sum, GetParam()) * 2).sum().backward();
  EXPECT_TRUE(torch::equal(one.grad(), torch::full({5}, 2.0 * world_.size())));
  one.mutable_grad() = torch::Tensor();
  const auto sums = grouped_allreduce(world_, {one, other}, sum, GetParam());
  (sums[0].sum() + (sums[1] * 4).sum()).backward();
  EXPECT_TRUE(torch::equal(one.grad(), torch::full({5}, 1.0 * world_.size())));
  EXPECT_TRUE(torch::equal(other.grad(), torch::full({5}, 4.0 * world_.size(), torch::kDouble)));
}

INSTANTIATE_TEST_SUITE_P(Types, CompressedAllreduce,
                         testing::Values(Compression::float16, Compression::bfloat16),
                         [](const auto& compression) {
                           return std::string(name_of(compression.param));
                         });

}  // namespace
}  // namespace hora::internal::test
