// allgather, alltoall and reduce_scatter of tensors, and broadcast out of place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/collectives.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

const std::vector<torch::ScalarType> all_types{
    torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kInt,
    torch::kLong, torch::kByte,     torch::kChar,  torch::kShort,  torch::kBool};

/// Contribution of `rank`: [rows, 3], each row another number.
torch::Tensor rows_of(int rank, std::int64_t rows, torch::ScalarType type = torch::kFloat) {
  return (torch::arange(rows * 3).view({rows, 3}) + 10 * rank).to(type);
}

torch::Tensor gathered_rows(const std::vector<int>& ranks, torch::ScalarType type) {
  std::vector<torch::Tensor> parts;
  for (const int rank : ranks) parts.push_back(rows_of(rank, rank, type));
  return torch::cat(parts);
}

std::vector<int> all_ranks(const Context& world) {
  return ranks_of(world, kWorld);
}

TEST(TensorAllgather, JoinsUnevenRowsOfEveryType) {
  const Context world = init();
  for (const auto type : all_types) {
    const auto own = rows_of(world.rank(), world.rank(), type);
    EXPECT_TRUE(torch::equal(allgather(world, own), gathered_rows(all_ranks(world), type))) << type;
  }
}

TEST(TensorAllgather, ScalarsAndStridedOnes) {
  const Context world = init();
  const auto scalars = allgather(world, torch::tensor(world.rank() + 0.5));
  EXPECT_TRUE(torch::equal(scalars, torch::arange(world.size()) + 0.5));
  const auto transposed = rows_of(world.rank(), 2).t();
  const auto gathered = allgather(world, transposed);
  ASSERT_EQ(gathered.sizes(), (std::vector<std::int64_t>{3 * world.size(), 2}));
  EXPECT_TRUE(torch::equal(gathered.narrow(0, 3 * world.rank(), 3), transposed));
  EXPECT_TRUE(torch::equal(allgather(world, torch::zeros({0, 4})), torch::zeros({0, 4})));
}

TEST(TensorAllgather, ManyAtOnceInAProcessSet) {
  const Context world = init();
  const ParitySet set(world);
  std::vector<TensorHandle> handles;
  for (int i = 0; i < 10; ++i) {
    handles.push_back(
        allgather_async(world, rows_of(world.rank(), world.rank()) + i,
                        {.name = "part " + std::to_string(i), .process_set = set.id}));
  }
  const auto expected = gathered_rows(set.members, torch::kFloat);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(torch::equal(handles[static_cast<std::size_t>(i)].wait(), expected + i)) << i;
  }
  barrier(world);
}

TEST(TensorAllgather, ResultOutlivesTheWorldAndIsNotHandedOutAgain) {
  torch::Tensor kept;
  {
    const Context world = init();
    kept = allgather(world, torch::full({100}, 1.0 + world.rank()));
    for (int i = 0; i < 5; ++i) allgather(world, torch::full({100}, 77.0));
    EXPECT_EQ(kept.numel(), 100 * world.size());
  }
  EXPECT_EQ(kept[0].item<double>(), 1.0);
  EXPECT_EQ(kept.max().item<double>(), static_cast<double>(kept.numel() / 100));
}

// Rank r sends r + i + 1 rows to rank i; the first column tells from whom, the second to whom.
torch::Tensor addressed(const Context& world, std::vector<std::int64_t>& splits) {
  std::vector<torch::Tensor> parts;
  for (int to = 0; to < world.size(); ++to) {
    splits.push_back(world.rank() + to + 1);
    auto part = torch::empty({splits.back(), 2});
    part.select(1, 0).fill_(world.rank());
    part.select(1, 1).fill_(to);
    parts.push_back(part);
  }
  return torch::cat(parts);
}

void expect_addressed_to_me(const Context& world, const AlltoallResult& result) {
  ASSERT_EQ(result.received_splits.size(), static_cast<std::size_t>(world.size()));
  std::int64_t first = 0;
  for (int from = 0; from < world.size(); ++from) {
    const std::int64_t count = result.received_splits[static_cast<std::size_t>(from)];
    EXPECT_EQ(count, world.rank() + from + 1);
    const auto part = result.tensor.narrow(0, first, count);
    EXPECT_TRUE(part.select(1, 0).eq(from).all().item<bool>());
    EXPECT_TRUE(part.select(1, 1).eq(world.rank()).all().item<bool>());
    first += count;
  }
  EXPECT_EQ(result.tensor.size(0), first);
}

TEST(TensorAlltoall, SplitsAsNumbersOrAsATensor) {
  const Context world = init();
  std::vector<std::int64_t> splits;
  const auto tensor = addressed(world, splits);
  expect_addressed_to_me(world, alltoall(world, tensor, {.splits = splits}));
  expect_addressed_to_me(world, alltoall(world, tensor, torch::tensor(splits)));
  expect_addressed_to_me(world, alltoall(world, tensor, torch::tensor(splits).to(torch::kInt)));
  auto handle = alltoall_async(world, tensor, torch::tensor(splits), {.name = "later"});
  expect_addressed_to_me(world, handle.wait());
}

TEST(TensorAlltoall, EvenlyAndNothingAtAllInAProcessSet) {
  const Context world = init();
  const ParitySet set(world);
  const auto members = static_cast<std::int64_t>(set.members.size());
  const auto result =
      alltoall(world, torch::full({2 * members, 2}, world.rank()), {.process_set = set.id});
  for (std::int64_t from = 0; from < members; ++from) {
    EXPECT_TRUE(result.tensor.narrow(0, 2 * from, 2)
                    .eq(set.members[static_cast<std::size_t>(from)])
                    .all()
                    .item<bool>());
  }
  const auto empty = alltoall(world, torch::zeros({0, 5}), {.process_set = set.id});
  EXPECT_EQ(empty.tensor.sizes(), (std::vector<std::int64_t>{0, 5}));
  barrier(world);
}

TEST(TensorAlltoall, RefusesSplitsThatDoNotFit) {
  const Context world = init();
  const auto tensor = torch::zeros({4, 2});
  const auto refused = [&](const torch::Tensor& splits, const std::string& why) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(why),
                 [&] { alltoall(world, tensor, splits, {.name = "own"}); });
  };
  refused(torch::zeros({world.size()}), "Float");
  refused(torch::zeros({1, world.size()}, torch::kLong), "2 dimensions");
  refused(torch::zeros({0}, torch::kLong), "one for each rank");
  refused(torch::full({world.size()}, 5, torch::kLong), "rows, and the tensor has 4");
  refused(torch::full({world.size() + 1}, 1, torch::kLong), "splits for");
}

TEST(TensorReduceScatter, GivesMyRowsOfTheSumAndOfTheAverage) {
  const Context world = init();
  const int size = world.size();
  for (const auto type :
       {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kInt, torch::kLong}) {
    const auto same = rows_of(0, 2 * size, type);
    const auto own = same.narrow(0, 2 * world.rank(), 2);
    EXPECT_TRUE(torch::equal(reduce_scatter(world, same, {.op = ReduceOp::sum}), own * size))
        << type;
    if (!torch::isFloatingType(type)) continue;
    EXPECT_TRUE(torch::allclose(reduce_scatter(world, same), own)) << type;
  }
}

TEST(TensorReduceScatter, UnevenRowsScaledInAProcessSet) {
  const Context world = init();
  const ParitySet set(world);
  const auto members = static_cast<std::int64_t>(set.members.size());
  const auto same = rows_of(0, members + 1);  // the first gets two rows, the others one
  auto handle = reduce_scatter_async(
      world, same.t().contiguous().t(),
      {.op = ReduceOp::sum, .process_set = set.id, .prescale = 0.5, .postscale = 4.0});
  const auto expected =
      set.own_rank == 0 ? same.narrow(0, 0, 2) : same.narrow(0, set.own_rank + 1, 1);
  EXPECT_TRUE(torch::allclose(handle.wait(), expected * (2.0 * static_cast<double>(members))));
  barrier(world);
}

TEST(TensorBroadcast, OutOfPlaceFromEveryRootLeavesItsArgument) {
  const Context world = init();
  for (int root = 0; root < world.size(); ++root) {
    for (const auto type : all_types) {
      const auto own = rows_of(world.rank(), 2, type);
      EXPECT_TRUE(torch::equal(broadcast(world, own, {.root = root}), rows_of(root, 2, type)));
      EXPECT_TRUE(torch::equal(own, rows_of(world.rank(), 2, type)));
    }
    const auto transposed = rows_of(world.rank(), 2).t();
    EXPECT_TRUE(torch::equal(broadcast(world, transposed, {.root = root}), rows_of(root, 2).t()));
  }
}

TEST(TensorHandleTest, WaitingTwiceIsAnError) {
  const Context world = init();
  auto handle = allreduce_async(world, torch::ones({3}));
  handle.wait();
  EXPECT_TRUE(handle.ready());
  expect_error(ErrorCode::invalid_use, HasSubstr("nothing to wait for"), [&] { handle.wait(); });
  auto exchange = alltoall_async(world, torch::ones({world.size()}));
  const AlltoallHandle moved = std::move(exchange);
  EXPECT_TRUE(exchange.ready());  // NOLINT(bugprone-use-after-move)
  expect_error(ErrorCode::invalid_use, HasSubstr("nothing to wait for"), [&] { exchange.wait(); });
  expect_error(ErrorCode::invalid_use, HasSubstr("nothing to wait for"),
               [] { TensorHandle().wait(); });
}

/// Rank 0 submits what the others wait for, when all have seen that it has not.
template <class Submit>
auto waited_for_in_time(const Context& world, Submit&& submit) {
  const bool last = world.rank() == 0;
  if (last) barrier(world, {.name = "seen"});
  auto handle = submit();
  EXPECT_TRUE(handle.valid());
  if (!last) {
    EXPECT_FALSE(handle.wait_for(20ms));
    EXPECT_FALSE(handle.ready());
    barrier(world, {.name = "seen"});
  }
  EXPECT_TRUE(handle.wait_for(1min));
  EXPECT_TRUE(handle.ready());
  EXPECT_TRUE(handle.valid()) << "wait() is still to be called";
  auto result = handle.wait();
  EXPECT_FALSE(handle.valid());
  EXPECT_TRUE(handle.wait_for(0s)) << "as ready()";
  return result;
}

TEST(TensorHandleTest, WaitForGivesUpInTimeAndWaitStillCollects) {
  const Context world = init();
  const torch::Tensor ones = torch::ones({3});
  const std::vector<torch::Tensor> group{ones, ones};
  const torch::Tensor indices = torch::zeros({1, 1}, torch::kLong);
  const torch::Tensor sparse = torch::sparse_coo_tensor(indices, torch::ones({1}), {2});
  EXPECT_TRUE(torch::equal(
      waited_for_in_time(world, [&] { return allreduce_async(world, ones, {.name = "x"}); }),
      ones));
  for (const torch::Tensor& each : waited_for_in_time(
           world, [&] { return grouped_allreduce_async(world, group, {.name = "g"}); })) {
    EXPECT_TRUE(torch::equal(each, ones));
  }
  EXPECT_TRUE(
      torch::equal(waited_for_in_time(
                       world, [&] { return sparse_allreduce_async(world, sparse, {.name = "s"}); })
                       .to_dense(),
                   sparse.to_dense()));
}

}  // namespace
}  // namespace hora::internal::test
