// SyncBatchNorm on parts equals BatchNorm on the whole batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/sync_batch_norm.h>

#include <cmath>
#include <vector>

#include "tests/frameworks/torch/host_reads.h"
#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t channels = 5;

/// Parts of `sizes[rank]` rows of one batch.
struct Parts {
  Parts(const std::vector<std::int64_t>& of_ranks, const std::vector<std::int64_t>& rest, int rank)
      : sizes(of_ranks) {
    std::vector<std::int64_t> shape{0, channels};
    shape.insert(shape.end(), rest.begin(), rest.end());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (static_cast<int>(i) == rank) first = shape[0];
      shape[0] += sizes[i];
    }
    count = sizes[static_cast<std::size_t>(rank)];
    torch::manual_seed(generator()());
    // Far from 0, so that a careless variance would be all rounding.
    whole = torch::randn(shape, torch::kDouble) * 3 + 100;
    weights = torch::randn(shape, torch::kDouble);
  }
  torch::Tensor own(const torch::Tensor& tensor) const { return tensor.narrow(0, first, count); }

  std::vector<std::int64_t> sizes;
  std::int64_t first = 0;
  std::int64_t count = 0;
  torch::Tensor whole, weights;
};

std::vector<std::int64_t> sizes_from(int ranks, std::int64_t first) {
  std::vector<std::int64_t> sizes;
  for (int rank = 0; rank < ranks; ++rank) sizes.push_back(first + 2 * rank);
  return sizes;
}

void expect_close(const torch::Tensor& actual, const torch::Tensor& expected, double tolerance) {
  EXPECT_TRUE(torch::allclose(actual, expected, tolerance, tolerance)) << actual << "\nexpected\n"
                                                                       << expected;
}

torch::Tensor summed(const Context& world, const torch::Tensor& gradient) {
  return allreduce(world, gradient, {.op = ReduceOp::sum});
}

/// Two rounds of forward and backward, then evaluation.
template <class BatchNorm>
void expect_equals_whole(const Context& world, const Parts& parts,
                         const torch::nn::BatchNormOptions& options, torch::ScalarType type,
                         double tolerance) {
  BatchNorm expected(options);
  expected->to(torch::kDouble);
  SyncBatchNorm module(world, options);
  module->to(type);
  if (options.affine()) {
    const torch::NoGradGuard no_grad;
    for (auto* weight : {&expected->weight, &module->weight}) {
      weight->copy_(torch::arange(1.0, 1.0 + channels));
    }
  }
  for (int round = 0; round < 2; ++round) {
    auto whole = (parts.whole + round).requires_grad_();
    auto own = (parts.own(parts.whole) + round).to(type).requires_grad_();
    const auto expected_output = expected->forward(whole);
    const auto output = module->forward(own);
    EXPECT_EQ(output.scalar_type(), type);
    expect_close(output.to(torch::kDouble), parts.own(expected_output), tolerance);
    (expected_output * parts.weights).sum().backward();
    (output * parts.own(parts.weights).to(type)).sum().backward();
    expect_close(own.grad().to(torch::kDouble), parts.own(whole.grad()), tolerance);
  }
  if (options.affine()) {
    expect_close(summed(world, module->weight.grad()).to(torch::kDouble), expected->weight.grad(),
                 10 * tolerance);
    expect_close(summed(world, module->bias.grad()).to(torch::kDouble), expected->bias.grad(),
                 10 * tolerance);
  }
  module->eval();
  expected->eval();
  expect_close(module->forward(parts.own(parts.whole).to(type)).to(torch::kDouble),
               parts.own(expected->forward(parts.whole)), tolerance);
  if (!options.track_running_stats()) return;
  expect_close(module->running_mean.to(torch::kDouble), expected->running_mean, tolerance);
  expect_close(module->running_var.to(torch::kDouble), expected->running_var, tolerance);
  EXPECT_EQ(module->num_batches_tracked.item<int>(), 2);
  EXPECT_TRUE(equals_root(world, module->running_mean));
  EXPECT_TRUE(equals_root(world, module->running_var));
}

TEST(SyncBatchNorm, EqualsBatchNormInOneToThreeDimensions) {
  const Context world = init();
  const torch::nn::BatchNormOptions options(channels);
  const auto parts = [&](const std::vector<std::int64_t>& rest) {
    return Parts(sizes_from(world.size(), 3), rest, world.rank());
  };
  expect_equals_whole<torch::nn::BatchNorm1d>(world, parts({}), options, torch::kDouble, 1e-9);
  expect_equals_whole<torch::nn::BatchNorm1d>(world, parts({4}), options, torch::kDouble, 1e-9);
  expect_equals_whole<torch::nn::BatchNorm2d>(world, parts({2, 3}), options, torch::kDouble, 1e-9);
  expect_equals_whole<torch::nn::BatchNorm3d>(world, parts({2, 1, 2}), options, torch::kDouble,
                                              1e-9);
  expect_equals_whole<torch::nn::BatchNorm2d>(world, parts({4, 4}), options, torch::kFloat, 1e-3);
}

TEST(SyncBatchNorm, EqualsBatchNormWithItsOtherOptionsAndWhereTheFirstRankHasNothing) {
  const Context world = init();
  auto sizes = sizes_from(world.size(), 0);
  if (world.size() == 1) sizes[0] = 4;
  const Parts parts(sizes, {3}, world.rank());
  const torch::nn::BatchNormOptions plain(channels);
  for (const auto& options : {plain, torch::nn::BatchNormOptions(plain).affine(false).eps(0.3),
                              torch::nn::BatchNormOptions(plain).momentum({}),
                              torch::nn::BatchNormOptions(plain).momentum(0.4)}) {
    expect_equals_whole<torch::nn::BatchNorm1d>(world, parts, options, torch::kDouble, 1e-9);
  }
}

TEST(SyncBatchNorm, NormalisesInAProcessSetAndLeavesOutRunningStatistics) {
  const Context world = init();
  const ParitySet set(world);
  SyncBatchNorm module(world, torch::nn::BatchNormOptions(channels).track_running_stats(false),
                       set.id);
  // Over the set the values 0 .. n - 1, each twice.
  const auto n = static_cast<double>(set.members.size());
  const auto output = module->forward(torch::full({2, channels}, 1.0 * set.own_rank));
  const double mean = (n - 1) / 2;
  const double variance = (n * n - 1) / 12;
  EXPECT_NEAR(output[0][0].item<double>(), (set.own_rank - mean) / std::sqrt(variance + 1e-5),
              1e-5);
  EXPECT_FALSE(module->running_mean.defined());
  barrier(world);
}

TEST(SyncBatchNorm, RefusesWhatHasNoVariance) {
  const Context world = init();
  SyncBatchNorm module(world, torch::nn::BatchNormOptions(channels));
  const std::int64_t rows = world.rank() == 0 ? 1 : 0;
  const std::pair<const char*, torch::Tensor> cases[] = {
      {"[N, 5, ...]", torch::zeros({2, 4})},
      {"has type Long; expected", torch::zeros({2, channels}, torch::kLong)},
      {"1 values a channel", torch::zeros({rows, channels})}};
  for (const auto& [text, input] : cases) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(text),
                 [&, &input = input] { module->forward(input); });
  }
}

// On a GPU each read would wait for it, in each layer.
TEST(SyncBatchNorm, TheHostReadsNoTensorWhereARankHasSeveralValuesAChannel) {
  const Context world = init();
  torch::nn::BatchNormOptions cumulative(channels);
  cumulative.momentum({});
  for (const auto& options : {torch::nn::BatchNormOptions(channels), cumulative}) {
    SyncBatchNorm module(world, options);
    const auto input = torch::randn({2 + world.rank(), channels}).requires_grad_();
    const HostReads reads;
    for (int round = 0; round < 2; ++round) module->forward(input).sum().backward();
    EXPECT_EQ(reads.count(), 0) << options.momentum().has_value();
    if (world.size() == 1) continue;
    module->forward(torch::randn({world.rank() == 0 ? 1 : 2, channels}));
    EXPECT_EQ(reads.count(), world.rank() == 0 ? 1 : 0) << "of the count of all ranks";
  }
}

// A Sequential holds another one only where its forward() is no template.
struct StageImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  torch::Tensor forward(const torch::Tensor& input) { return SequentialImpl::forward(input); }
};
TORCH_MODULE(Stage);

torch::nn::Sequential with_batch_norms() {
  torch::manual_seed(1);
  return torch::nn::Sequential(
      Stage(torch::nn::Conv2d(3, channels, 3), torch::nn::BatchNorm2d(channels), torch::nn::Tanh(),
            torch::nn::Flatten()),
      torch::nn::Linear(80, channels), torch::nn::BatchNorm1d(channels));
}

TEST(ConvertBatchNorm, ReplacesThoseInSequentials) {
  const Context world = init();
  torch::nn::Sequential model = with_batch_norms();
  torch::nn::Sequential whole = with_batch_norms();
  const auto before = model->named_parameters();
  model->named_buffers()["2.running_mean"].fill_(3.0);

  EXPECT_EQ(convert_batch_norm(world, *model), 2U);
  const auto after = model->named_parameters();
  EXPECT_EQ(after.keys(), before.keys());
  for (const auto& item : before) EXPECT_TRUE(after[item.key()].is_same(item.value()));
  EXPECT_EQ(model->named_buffers()["2.running_mean"][0].item<double>(), 3.0);

  const Batch batch = whole_batch(1, 2 * world.size());
  const auto output = model->forward(part_of(batch, world.rank(), 2).images);
  expect_close(output, whole->forward(batch.images).narrow(0, 2 * world.rank(), 2), 1e-4);
  EXPECT_EQ(convert_batch_norm(world, *model), 0U);
}

struct Block : torch::nn::Module {
  Block() {
    norm = register_module("norm", torch::nn::BatchNorm2d(channels));
    rest = register_module("rest", torch::nn::Sequential(torch::nn::BatchNorm2d(channels)));
  }
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential rest{nullptr};
};

TEST(ConvertBatchNorm, NamesThoseItCannotReplaceAndChangesNothing) {
  const Context world = init();
  Block block;
  expect_error(ErrorCode::invalid_argument, HasSubstr(": 'norm';"),
               [&] { convert_batch_norm(world, block); });
  EXPECT_TRUE(block.rest[0]->as<torch::nn::BatchNorm2d>());
}

}  // namespace
}  // namespace hora::internal::test
