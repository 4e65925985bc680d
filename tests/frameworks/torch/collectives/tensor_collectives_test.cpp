#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <vector>

#include "tests/frameworks/torch/network.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

torch::Tensor ranks_value(const Context& world, torch::IntArrayRef shape,
                          torch::ScalarType type = torch::kFloat) {
  return torch::full(shape, 1 + world.rank(), type);
}

double sum_of_ranks(const Context& world) {
  return world.size() * (world.size() + 1) / 2.0;
}

TEST(TensorCollectives, ContextKnowsWhereThisRankStands) {
  const Context world = init();
  int rank = -1;
  int size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_EQ(world.rank(), rank);
  EXPECT_EQ(world.size(), size);
  const auto& node = world.ranks_of_node(world.cross_rank());
  ASSERT_EQ(static_cast<int>(node.size()), world.local_size());
  EXPECT_EQ(node[static_cast<std::size_t>(world.local_rank())], rank);
  EXPECT_LT(world.cross_rank(), world.cross_size());
  EXPECT_TRUE(local_device(world).is_cpu());
}

TEST(TensorCollectives, AllreduceAveragesAndLeavesItsArgument) {
  const Context world = init();
  const auto tensor = ranks_value(world, {2, 3});
  const auto average = allreduce(world, tensor);
  EXPECT_TRUE(torch::allclose(average, torch::full({2, 3}, sum_of_ranks(world) / world.size())));
  EXPECT_TRUE(torch::equal(tensor, ranks_value(world, {2, 3})));
}

TEST(TensorCollectives, AllreduceInPlaceSumsEveryType) {
  const Context world = init();
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble,
                          torch::kInt, torch::kLong, torch::kByte}) {
    auto tensor = ranks_value(world, {5}, type);
    EXPECT_TRUE(allreduce_(world, tensor, {.op = ReduceOp::sum}).is_same(tensor));
    EXPECT_TRUE(torch::equal(tensor, torch::full({5}, sum_of_ranks(world), type))) << type;
  }
}

TEST(TensorCollectives, StridesAndEmptinessAreNoObstacle) {
  const Context world = init();
  auto base = torch::zeros({4, 6});
  auto every_second = base.slice(1, 0, 6, 2);
  every_second.fill_(1 + world.rank());
  allreduce_(world, every_second, {.op = ReduceOp::sum});
  EXPECT_TRUE(torch::equal(every_second, torch::full({4, 3}, sum_of_ranks(world))));
  EXPECT_TRUE(torch::equal(base.slice(1, 1, 6, 2), torch::zeros({4, 3})));
  auto transposed = torch::full({2, 3}, 1.0 + world.rank()).t();
  broadcast_(world, transposed, {.root = world.size() - 1});
  EXPECT_TRUE(torch::equal(transposed, torch::full({3, 2}, 1.0 * world.size())));
  auto empty = torch::zeros({0, 3});
  allreduce_(world, empty);
  auto scalar = torch::tensor(1.0 + world.rank());
  EXPECT_DOUBLE_EQ(allreduce(world, scalar, {.op = ReduceOp::sum}).item<double>(),
                   sum_of_ranks(world));
}

TEST(TensorCollectives, ResultsOfAllreduceAndBroadcastHaveTheirMemoryFormat) {
  const Context world = init();
  const auto row_major = torch::arange(24, torch::kFloat).view({2, 3, 2, 2});
  const auto own = row_major.contiguous(torch::MemoryFormat::ChannelsLast);
  for (const auto& result :
       {allreduce(world, own), allreduce(world, own, {}, Compression::float16),
        grouped_allreduce(world, {own, own})[1], allreduce_async(world, own).wait(),
        broadcast(world, own), broadcast_async(world, own, {.root = world.size() - 1}).wait()}) {
    EXPECT_EQ(result.strides(), own.strides());
    EXPECT_TRUE(torch::equal(result, own));
  }
  // Values meet by their indices, in whatever order each rank has them in memory.
  const auto mixed = world.rank() % 2 == 0 ? own : row_major;
  const auto average = allreduce(world, mixed);
  EXPECT_EQ(average.strides(), mixed.strides());
  EXPECT_TRUE(torch::equal(average, own));
}

TEST(TensorCollectives, ManyByNameInAnyOrder) {
  const Context world = init();
  constexpr int count = 20;
  std::vector<TensorHandle> handles;
  for (int i = 0; i < count; ++i) {
    const int which = world.rank() % 2 == 0 ? i : count - 1 - i;
    handles.push_back(allreduce_async_(world,
                                       torch::full({100}, which + world.rank()).to(torch::kFloat),
                                       {.name = "t" + std::to_string(which), .op = ReduceOp::sum}));
  }
  for (int i = 0; i < count; ++i) {
    const int which = world.rank() % 2 == 0 ? i : count - 1 - i;
    const double expected = which * world.size() + sum_of_ranks(world) - world.size();
    EXPECT_TRUE(
        torch::equal(handles[static_cast<std::size_t>(i)].wait(), torch::full({100}, expected)))
        << which;
  }
}

TEST(TensorCollectives, AutogradSeesThatAValueWasOverwritten) {
  const Context world = init();
  const auto leaf = torch::ones({3}, torch::requires_grad());
  auto used = leaf * 2;
  const auto loss = (used * used).sum();
  allreduce_(world, used, {.op = ReduceOp::sum});
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(TensorCollectives, WhatCannotTravelIsRefusedByName) {
  const Context world = init();
  const auto refused = [&](torch::Tensor tensor, const std::string& why) {
    try {
      allreduce_(world, tensor, {.name = "own"});
      ADD_FAILURE() << why << ": no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("\"own\""));
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  refused({}, "undefined");
  refused(torch::zeros({3}).to_sparse(), "sparse");
  refused(torch::zeros({3}, torch::kComplexFloat), "ComplexFloat");
  expect_error(ErrorCode::invalid_argument,
               testing::AllOf(HasSubstr("\"own\""), HasSubstr("compression is 9; expected")), [&] {
                 allreduce(world, torch::zeros({3}), {.name = "own"}, static_cast<Compression>(9));
               });
}

// All that a module can hold: several types (complex numbers travel as bytes), a mask, a tied
// weight, odd strides.
struct OddModule : torch::nn::Module {
  explicit OddModule(double value) {
    const auto scalar = torch::tensor(value);
    tied = register_parameter("tied", torch::full({3}, value));
    register_parameter("tied_again", tied);
    strided = register_parameter("strided", torch::full({3, 2}, value).t());
    frozen = register_parameter("frozen", torch::full({2}, value, torch::kHalf), false);
    mask = register_buffer("mask", torch::full({3}, value).gt(1.5));
    count = register_buffer("count", scalar.to(torch::kLong));
    small = register_buffer("small", scalar.to(torch::kShort));
    register_buffer("phase", torch::full({2}, value, torch::kComplexFloat));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    norm->running_mean.fill_(value);
  }
  torch::Tensor tied, strided, frozen, mask, count, small;
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(BroadcastModule, GivesEveryRankTheRootsParametersAndBuffers) {
  const Context world = init();
  const int root = world.size() - 1;
  OddModule module(1.0 + world.rank());
  const OddModule expected(1.0 + root);
  broadcast_parameters(world, module, root);
  const auto of_module = module.named_parameters();
  for (const auto& item : expected.named_parameters()) {
    EXPECT_TRUE(torch::equal(of_module[item.key()], item.value())) << item.key();
  }
  const auto buffers = module.named_buffers();
  for (const auto& item : expected.named_buffers()) {
    EXPECT_TRUE(torch::equal(buffers[item.key()], item.value())) << item.key();
  }
  EXPECT_TRUE(module.strided.requires_grad());
  EXPECT_FALSE(module.frozen.requires_grad());
  EXPECT_FALSE(module.frozen.grad().defined());
}

TEST(BroadcastModule, BuffersAlone) {
  const Context world = init();
  OddModule module(1.0 + world.rank());
  broadcast_buffers(world, module);
  EXPECT_EQ(module.norm->running_mean[0].item<double>(), 1.0);
  EXPECT_EQ(module.mask[0].item<bool>(), false);
  EXPECT_EQ(module.small.item<int>(), 1);
  EXPECT_EQ(module.tied[0].item<double>(), 1.0 + world.rank());
}

}  // namespace
}  // namespace hora::internal::test
