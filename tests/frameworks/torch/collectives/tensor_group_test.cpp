// Collectives on several tensors under one handle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/collectives.h>

#include <vector>

#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Tensors of several shapes and types, filled with `value`, `value` + 1, ...
std::vector<torch::Tensor> mixed(double value, std::int64_t rows = 6) {
  return {torch::full({rows}, value), torch::full({rows, 2}, value + 1, torch::kDouble),
          torch::full({2, rows}, value + 2).t()};
}

TEST(TensorGroup, AllreduceOutOfPlaceAndInPlace) {
  const Context world = init();
  const auto tensors = mixed(world.rank());
  const double mean = (world.size() - 1) / 2.0;
  expect_equal(grouped_allreduce(world, tensors, {.name = "group"}), mixed(mean));
  expect_equal(tensors, mixed(world.rank()));
  grouped_allreduce_(world, tensors);
  expect_equal(tensors, mixed(mean));
}

// Large enough to be reduced where they lie.
TEST(TensorGroup, MembersThatOverlapAreEachReducedOnce) {
  const Context world = init();
  const double sum = world.size() * (world.size() + 1) / 2.0;
  const auto all = torch::full({1 << 16, 2}, world.rank() + 1.0);
  const auto half = all.narrow(0, 0, 1 << 15);
  const auto expected = torch::full_like(all, sum);
  for (const auto& other : {all, half, all.t(), all.select(1, 1)}) {
    all.fill_(world.rank() + 1.0);
    grouped_allreduce_(world, {all, other, half}, {.op = ReduceOp::sum});
    expect_equal({all}, {expected});
  }
}

TEST(TensorGroup, BroadcastOutOfPlaceAndInPlace) {
  const Context world = init();
  const int root = world.size() - 1;
  const auto tensors = mixed(world.rank());
  expect_equal(grouped_broadcast(world, tensors, {.root = root}), mixed(root));
  expect_equal(tensors, mixed(world.rank()));
  grouped_broadcast_(world, tensors, {.name = "group", .root = root});
  expect_equal(tensors, mixed(root));
}

// The first member's rows are divided by splits, those of the others by the same ones.
TEST(TensorGroup, AlltoallWithTheSplitsOfEachAndInEqualParts) {
  const Context world = init();
  const std::int64_t size = world.size();
  const double own_rank = world.rank();
  std::vector<std::int64_t> splits;
  std::vector<torch::Tensor> parts;
  for (std::int64_t to = 0; to < size; ++to) {
    splits.push_back(to + 1);
    parts.push_back(torch::full({to + 1}, own_rank * 10 + static_cast<double>(to), torch::kDouble));
  }
  const auto sent = torch::cat(parts);
  auto handle = grouped_alltoall_async(world, {sent, sent.to(torch::kFloat)}, {.splits = splits});
  const auto received = handle.wait();
  EXPECT_TRUE(handle.ready());
  std::vector<torch::Tensor> expected;
  for (std::int64_t from = 0; from < size; ++from) {
    expected.push_back(
        torch::full({world.rank() + 1}, static_cast<double>(from) * 10 + own_rank, torch::kDouble));
  }
  ASSERT_EQ(received.size(), 2U);
  expect_equal({received[0].tensor, received[1].tensor},
               {torch::cat(expected), torch::cat(expected).to(torch::kFloat)});
  EXPECT_EQ(received[1].received_splits,
            std::vector<std::int64_t>(static_cast<std::size_t>(size), world.rank() + 1));

  // Without splits each tensor is divided by itself.
  const auto even =
      grouped_alltoall(world, {torch::full({size}, own_rank), torch::full({3 * size, 2}, own_rank)},
                       {.name = "even"});
  EXPECT_TRUE(torch::equal(even[0].tensor, torch::arange(size, torch::kFloat)));
  EXPECT_TRUE(torch::equal(
      even[1].tensor,
      torch::arange(size, torch::kFloat).repeat_interleave(3).unsqueeze(1).expand({3 * size, 2})));
  EXPECT_TRUE(grouped_alltoall(world, std::vector<torch::Tensor>()).empty());
}

TEST(TensorGroup, AllreduceAndBroadcastInAProcessSet) {
  const Context world = init();
  const ParitySet set(world);
  double sum = 0;
  for (const int member : set.members) sum += member;
  const auto count = static_cast<double>(set.members.size());
  const auto tensors = mixed(world.rank());
  expect_equal(grouped_allreduce(world, tensors, {.process_set = set.id}), mixed(sum / count));
  grouped_allreduce_(world, tensors, {.process_set = set.id});
  expect_equal(tensors, mixed(sum / count));
  const int root = set.members.back();
  expect_equal(grouped_broadcast(world, mixed(world.rank()), {.root = root, .process_set = set.id}),
               mixed(root));
  barrier(world);
}

TEST(TensorGroup, AllgatherOfRowsThatDifferByRank) {
  const Context world = init();
  const std::int64_t own = world.rank() + 1;
  const auto gathered = grouped_allgather(
      world, {torch::full({own}, world.rank()), torch::full({2 * own, 3}, world.rank())});
  const auto ranks = torch::arange(world.size());
  EXPECT_TRUE(torch::equal(gathered[0], ranks.repeat_interleave(ranks + 1)));
  EXPECT_TRUE(torch::equal(gathered[1].select(1, 2), ranks.repeat_interleave(2 * (ranks + 1))));
}

TEST(TensorGroup, WhereOneMemberDiffersItIsTheSameErrorOnEveryRank) {
  const Context world = init();
  if (world.size() == 1) GTEST_SKIP() << "one rank cannot disagree with itself";
  for (int odd = 0; odd < world.size(); ++odd) {
    const std::vector<torch::Tensor> tensors{torch::ones({2}),
                                             torch::ones({world.rank() == odd ? 4 : 3})};
    expect_error(ErrorCode::mismatch,
                 AllOf(HasSubstr("\"g.1\""), HasSubstr("[3]"), HasSubstr("[4]")),
                 [&] { grouped_allreduce(world, tensors, {.name = "g"}); });
    expect_equal(grouped_allreduce(world, mixed(1.0), {.name = "g"}), mixed(1.0));
  }
}

TEST(TensorGroup, OneHandleForAll) {
  const Context world = init();
  TensorGroupHandle first = grouped_allreduce_async(world, mixed(1.0), {.name = "first"});
  TensorGroupHandle second = grouped_allreduce_async(world, mixed(2.0), {.name = "second"});
  expect_equal(second.wait(), mixed(2.0));
  expect_equal(first.wait(), mixed(1.0));
  EXPECT_TRUE(first.ready());
  EXPECT_TRUE(grouped_allreduce(world, {}, {.name = "none"}).empty());
  EXPECT_TRUE(grouped_allgather(world, {}).empty());
}

TEST(TensorGroup, OnSeveralDevicesIsAnError) {
  const Context world = init();
  const std::vector<torch::Tensor> tensors{torch::zeros({2}),
                                           torch::zeros({2}, torch::Device("meta"))};
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("\"g.1\""), HasSubstr("meta"), HasSubstr("cpu")),
               [&] { grouped_allreduce_(world, tensors, {.name = "g"}); });
}

TEST(TensorGroup, WhatOneMemberLacksIsAnErrorAndTheNextGroupIsRight) {
  const Context world = init();
  const std::vector<torch::Tensor> tensors{torch::ones({2}), torch::ones({2}, torch::kInt)};
  expect_error(ErrorCode::invalid_argument, HasSubstr("average of int32"),
               [&] { grouped_allreduce(world, tensors, {.name = "g"}); });
  expect_equal(grouped_allreduce(world, tensors, {.name = "g", .op = ReduceOp::sum}),
               {tensors[0] * world.size(), tensors[1] * world.size()});
}

}  // namespace
}  // namespace hora::internal::test
