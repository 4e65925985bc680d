// Each collective on tensors in every way: blocking or not, alone or in a group, in place, of every
// type, strided, on the world and in a process set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/collectives.h>

#include <chrono>
#include <functional>
#include <utility>

#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

const std::vector<torch::ScalarType> all_types{
    torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kInt,
    torch::kLong, torch::kByte,     torch::kChar,  torch::kShort,  torch::kBool};
/// Types that can be summed, small numbers exactly.
const std::vector<torch::ScalarType> sum_types{torch::kHalf,   torch::kBFloat16, torch::kFloat,
                                               torch::kDouble, torch::kInt,      torch::kLong};

/// The ranks of a call, and this rank's place among them.
struct Where {
  ProcessSet set = kWorld;
  std::vector<int> members;
  int place = 0;
  std::int64_t size() const { return static_cast<std::int64_t>(members.size()); }
};

/// Contribution of `rank`: [rows, 3], each row another number.
torch::Tensor rows_of(int rank, std::int64_t rows, torch::ScalarType type = torch::kFloat) {
  return (torch::arange(rows * 3).view({rows, 3}) + 10 * rank).to(type);
}

torch::Tensor sum_over(const Where& where, std::int64_t rows, torch::ScalarType type) {
  torch::Tensor sum = torch::zeros({rows, 3}, type);
  for (const int rank : where.members) sum += rows_of(rank, rows, type);
  return sum;
}

/// Expects that an operation on `rows(where, rank)` rows a rank has one result in all its ways,
/// which `run` goes.
void check_operation(const Context& world, const std::vector<torch::ScalarType>& types,
                     const std::function<std::int64_t(const Where&, int rank)>& rows,
                     const std::function<torch::Tensor(const Where&, torch::ScalarType)>& expected,
                     const std::function<std::vector<Tensors>(const Tensors&, const Where&)>& run) {
  const ParitySet parity(world);
  const Where all{kWorld, ranks_of(world, kWorld), world.rank()};
  for (const Where& where : {all, Where{parity.id, parity.members, parity.own_rank}}) {
    for (const auto type : types) {
      SCOPED_TRACE(testing::Message() << type << ", " << where.members.size() << " ranks");
      const auto own = rows_of(world.rank(), rows(where, world.rank()), type);
      const auto strided = own.t().contiguous().t();
      const auto before = own.clone();
      const std::vector<Tensors> ways = run({own, strided}, where);
      for (std::size_t way = 0; way < ways.size(); ++way) {
        for (const auto& result : ways[way]) {
          EXPECT_EQ(result.scalar_type(), type) << "way " << way;
          EXPECT_TRUE(torch::equal(result, expected(where, type))) << "way " << way << result;
        }
      }
      expect_equal({own, strided}, {before, before});
    }
  }
  barrier(world);
}

Tensors tensors_in(const std::vector<AlltoallResult>& results) {
  Tensors all;
  for (const auto& result : results) all.push_back(result.tensor);
  return all;
}

TEST(TensorCollectives, AllreduceInEveryWay) {
  const Context world = init();
  const auto options = [](const Where& where, const char* name = "") {
    return AllreduceOptions{.name = name, .op = ReduceOp::sum, .process_set = where.set};
  };
  check_operation(
      world, sum_types, [](const Where&, int) { return 4; },
      [](const Where& where, torch::ScalarType type) { return sum_over(where, 4, type); },
      [&](const Tensors& own, const Where& where) {
        const Tensors alone{allreduce(world, own[0], options(where)),
                            allreduce(world, own[1], options(where, "named"))};
        auto one = allreduce_async(world, own[0], options(where));
        auto other = allreduce_async(world, own[1], options(where, "other"));
        const Tensors later{other.wait(), one.wait()};
        const Tensors group = grouped_allreduce(world, own, options(where, "group"));
        const Tensors later_group = grouped_allreduce_async(world, own, options(where)).wait();
        Tensors all = copies_of(own);
        EXPECT_TRUE(allreduce_(world, all[0], options(where)).is_same(all[0]));
        allreduce_async_(world, all[1], options(where)).wait();
        const Tensors in_place = copies_of(own), more = copies_of(own);
        grouped_allreduce_(world, in_place, options(where, "group"));
        grouped_allreduce_async_(world, more, options(where)).wait();
        return std::vector<Tensors>{alone, later, group, later_group, all, in_place, more};
      });
}

TEST(TensorBroadcast, InEveryWay) {
  const Context world = init();
  check_operation(
      world, all_types, [](const Where&, int) { return 2; },
      [](const Where& where, torch::ScalarType type) {
        return rows_of(where.members.back(), 2, type);
      },
      [&](const Tensors& own, const Where& where) {
        const BroadcastOptions options{.root = where.members.back(), .process_set = where.set};
        Tensors all = copies_of(own);
        broadcast_(world, all[0], options);
        broadcast_async_(world, all[1], options).wait();
        const Tensors group = copies_of(own), more = copies_of(own);
        grouped_broadcast_(world, group, options);
        grouped_broadcast_async_(world, more, options).wait();
        const Tensors alone{broadcast(world, own[1], options),
                            broadcast_async(world, own[0], options).wait()};
        return std::vector<Tensors>{all,
                                    group,
                                    more,
                                    alone,
                                    grouped_broadcast(world, own, options),
                                    grouped_broadcast_async(world, own, options).wait()};
      });
}

TEST(TensorAllgather, OfUnevenRowsInEveryWay) {
  const Context world = init();
  check_operation(
      world, all_types, [](const Where&, int rank) { return rank % 3; },
      [](const Where& where, torch::ScalarType type) {
        Tensors parts;
        for (const int rank : where.members) parts.push_back(rows_of(rank, rank % 3, type));
        return torch::cat(parts);
      },
      [&](const Tensors& own, const Where& where) {
        const AllgatherOptions options{.process_set = where.set};
        const Tensors alone{allgather(world, own[0], options),
                            allgather_async(world, own[1], options).wait()};
        return std::vector<Tensors>{alone, grouped_allgather(world, own, options),
                                    grouped_allgather_async(world, own, options).wait()};
      });
  const auto scalars = allgather(world, torch::tensor(world.rank() + 0.5));
  EXPECT_TRUE(torch::equal(scalars, torch::arange(world.size()) + 0.5));
}

TEST(TensorAlltoall, InEqualPartsInEveryWay) {
  const Context world = init();
  check_operation(
      world, all_types, [](const Where& where, int) { return 2 * where.size(); },
      [](const Where& where, torch::ScalarType type) {
        Tensors parts;
        for (const int rank : where.members) {
          parts.push_back(rows_of(rank, 2 * where.size(), type).narrow(0, 2 * where.place, 2));
        }
        return torch::cat(parts);
      },
      [&](const Tensors& own, const Where& where) {
        const AlltoallOptions options{.process_set = where.set};
        const Tensors alone{alltoall(world, own[0], options).tensor,
                            alltoall_async(world, own[1], options).wait().tensor};
        return std::vector<Tensors>{alone, tensors_in(grouped_alltoall(world, own, options)),
                                    tensors_in(grouped_alltoall_async(world, own, options).wait())};
      });
  EXPECT_EQ(alltoall(world, torch::zeros({0, 5})).tensor.sizes(), torch::IntArrayRef({0, 5}));
}

// The first rank gets two rows, the others one.
TEST(TensorReduceScatter, OfUnevenRowsInEveryWay) {
  const Context world = init();
  check_operation(
      world, sum_types, [](const Where& where, int) { return where.size() + 1; },
      [](const Where& where, torch::ScalarType type) {
        const auto sum = sum_over(where, where.size() + 1, type);
        return where.place == 0 ? sum.narrow(0, 0, 2) : sum.narrow(0, where.place + 1, 1);
      },
      [&](const Tensors& own, const Where& where) {
        const ReduceScatterOptions options{.op = ReduceOp::sum, .process_set = where.set};
        const Tensors alone{reduce_scatter(world, own[0], options),
                            reduce_scatter_async(world, own[1], options).wait()};
        return std::vector<Tensors>{alone, grouped_reduce_scatter(world, own, options),
                                    grouped_reduce_scatter_async(world, own, options).wait()};
      });
  const auto same = rows_of(0, world.size());
  EXPECT_TRUE(torch::allclose(reduce_scatter(world, same, {.prescale = 0.5, .postscale = 4.0}),
                              2 * same.narrow(0, world.rank(), 1)));
}

// Rank r sends r + i + 1 rows to rank i: the first column tells from whom, the second to whom.
TEST(TensorAlltoall, SplitsAsNumbersOrAsATensorAndOfAGroup) {
  const Context world = init();
  std::vector<std::int64_t> splits, received;
  Tensors sent, expected;
  for (std::int64_t i = 0; i < world.size(); ++i) {
    const std::int64_t rows = world.rank() + i + 1;
    splits.push_back(rows);
    const auto own = torch::tensor({world.rank(), static_cast<int>(i)}).expand({rows, 2});
    sent.push_back(own);
    expected.push_back(own.flip(1));
  }
  const auto tensor = torch::cat(sent);
  const auto check = [&](const AlltoallResult& result) {
    EXPECT_EQ(result.received_splits, splits);
    EXPECT_TRUE(torch::equal(result.tensor, torch::cat(expected))) << result.tensor;
  };
  check(alltoall(world, tensor, {.splits = splits}));
  check(alltoall(world, tensor, torch::tensor(splits)));
  check(alltoall(world, tensor, torch::tensor(splits).to(torch::kInt)));
  check(alltoall_async(world, tensor, torch::tensor(splits), {.name = "later"}).wait());
  for (const auto& each : grouped_alltoall(world, {tensor, tensor}, {.splits = splits}))
    check(each);
}

TEST(TensorAlltoall, RefusesSplitsThatDoNotFit) {
  const Context world = init();
  const auto tensor = torch::zeros({4, 2});
  const std::pair<torch::Tensor, const char*> cases[] = {
      {torch::zeros({world.size()}), "Float"},
      {torch::zeros({1, world.size()}, torch::kLong), "2 dimensions"},
      {torch::zeros({0}, torch::kLong), "one for each rank"},
      {torch::full({world.size()}, 5, torch::kLong), "rows, and the tensor has 4"},
      {torch::full({world.size() + 1}, 1, torch::kLong), "splits for"}};
  for (const auto& [splits, why] : cases) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(why),
                 [&, &splits = splits] { alltoall(world, tensor, splits, {.name = "own"}); });
  }
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
  const torch::Tensor sparse = torch::ones({3}).to_sparse();
  expect_equal(
      {waited_for_in_time(world, [&] { return allreduce_async(world, ones, {.name = "x"}); })},
      {ones});
  expect_equal(
      waited_for_in_time(world,
                         [&] {
                           return grouped_allreduce_async(world, {ones, ones}, {.name = "g"});
                         }),
      {ones, ones});
  expect_equal({waited_for_in_time(
                    world, [&] { return sparse_allreduce_async(world, sparse, {.name = "s"}); })
                    .to_dense()},
               {ones});
}

// Large enough to be reduced where they lie.
TEST(TensorGroup, MembersThatOverlapAreEachReducedOnce) {
  const Context world = init();
  const double sum = world.size() * (world.size() + 1) / 2.0;
  const auto all = torch::full({1 << 16, 2}, world.rank() + 1.0);
  const auto half = all.narrow(0, 0, 1 << 15);
  for (const auto& other : {all, half, all.t(), all.select(1, 1)}) {
    all.fill_(world.rank() + 1.0);
    grouped_allreduce_(world, {all, other, half}, {.op = ReduceOp::sum});
    expect_equal({all}, {torch::full_like(all, sum)});
  }
}

TEST(TensorGroup, ErrorsAreTheSameOnEveryRankAndTheNextGroupIsRight) {
  const Context world = init();
  const auto next = [&] {
    const Tensors ones{torch::ones({2}), torch::ones({2}, torch::kInt)};
    expect_equal(grouped_allreduce(world, ones, {.name = "g", .op = ReduceOp::max}), ones);
  };
  for (int odd = 0; odd < world.size() && world.size() > 1; ++odd) {
    const Tensors tensors{torch::ones({2}), torch::ones({world.rank() == odd ? 4 : 3})};
    expect_error(ErrorCode::mismatch,
                 AllOf(HasSubstr("\"g.1\""), HasSubstr("[3]"), HasSubstr("[4]")),
                 [&] { grouped_allreduce(world, tensors, {.name = "g"}); });
    next();
  }
  const Tensors devices{torch::zeros({2}), torch::zeros({2}, torch::Device("meta"))};
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("\"g.1\""), HasSubstr("meta"), HasSubstr("cpu")),
               [&] { grouped_allreduce_(world, devices, {.name = "g"}); });
  const Tensors types{torch::ones({2}), torch::ones({2}, torch::kInt)};
  expect_error(ErrorCode::invalid_argument, HasSubstr("average of int32"),
               [&] { grouped_allreduce(world, types, {.name = "g"}); });
  next();
  EXPECT_TRUE(grouped_allreduce(world, {}, {.name = "none"}).empty());
  EXPECT_TRUE(grouped_alltoall(world, Tensors()).empty());
}

}  // namespace
}  // namespace hora::internal::test
