// The allreduce of sparse tensors equals the dense one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/sparse.h>

#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// `count` elements of small whole numbers at random places, some more than once: [7, 5, 3], the
/// last dimension dense.
torch::Tensor sparse(const Context& world, std::int64_t count,
                     torch::ScalarType type = torch::kFloat) {
  torch::manual_seed(generator(static_cast<std::uint64_t>(world.rank()))());
  const auto indices = torch::stack(
      {torch::randint(7, {count}, torch::kLong), torch::randint(5, {count}, torch::kLong)});
  return torch::sparse_coo_tensor(indices, torch::randint(-9, 9, {count, 3}).to(type), {7, 5, 3});
}

TEST(SparseAllreduce, EqualsTheDenseOne) {
  const Context world = init();
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kLong}) {
    const auto own = sparse(world, 4 * world.rank(), type);  // rank 0 has none
    const auto result = sparse_allreduce(world, own, {.op = ReduceOp::sum});
    EXPECT_TRUE(result.is_coalesced());
    EXPECT_TRUE(
        torch::equal(result.to_dense(), allreduce(world, own.to_dense(), {.op = ReduceOp::sum})));
  }
}

TEST(SparseAllreduce, AveragesAndScalesInAProcessSet) {
  const Context world = init();
  const ParitySet set(world);
  const AllreduceOptions options{
      .name = "rows", .process_set = set.id, .prescale = 2.0, .postscale = 0.25};
  const auto own = sparse(world, 11);
  auto handle = sparse_allreduce_async(world, own, options);
  const auto dense = allreduce(world, own.to_dense(), options);
  EXPECT_TRUE(torch::allclose(handle.wait().to_dense(), dense));
  barrier(world);
}

TEST(SparseAllreduce, NoRankHasAnElement) {
  const Context world = init();
  const auto result = sparse_allreduce(world, sparse(world, 0));
  EXPECT_EQ(result.sizes(), (std::vector<std::int64_t>{7, 5, 3}));
  EXPECT_EQ(result._nnz(), 0);
}

TEST(SparseAllreduce, RefusesWhatItCannotAdd) {
  const Context world = init();
  const auto refused = [&](const torch::Tensor& tensor, ReduceOp op, const std::string& why) {
    expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("\"own\""), HasSubstr(why)),
                 [&] { sparse_allreduce(world, tensor, {.name = "own", .op = op}); });
  };
  refused(torch::zeros({3}), ReduceOp::sum, "not sparse");
  refused({}, ReduceOp::sum, "undefined");
  refused(sparse(world, 2), ReduceOp::max, "by max");
  refused(sparse(world, 2, torch::kLong), ReduceOp::average, "Long");
}

TEST(SparseAllreduce, TheSameErrorOnEveryRankWhereSizesDiffer) {
  const Context world = init();
  if (world.size() == 1) GTEST_SKIP() << "one rank cannot disagree with itself";
  const std::int64_t rows = world.rank() == 1 ? 8 : 7;
  const auto own =
      torch::sparse_coo_tensor(torch::zeros({1, 1}, torch::kLong), torch::ones({1}), {rows});
  expect_error(ErrorCode::mismatch, AllOf(HasSubstr("rank 0 has [7]"), HasSubstr("rank 1 has [8]")),
               [&] { sparse_allreduce(world, own, {.name = "own"}); });
}

}  // namespace
}  // namespace hora::internal::test
