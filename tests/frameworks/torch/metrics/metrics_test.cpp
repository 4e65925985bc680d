#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <hora/torch/metrics.h>
#include <torch/torch.h>

#include <limits>
#include <random>

#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

TEST(AverageMeter, PrintsLinesAsPyTorchsExample) {
  AverageMeter time("Time", {.width = 6, .precision = 3});
  AverageMeter loss("Loss", {.precision = 4, .scientific = true});
  AverageMeter top1("Acc@1", {.width = 6, .precision = 2});
  EXPECT_EQ(loss.text(), "Loss 0.0000e+00 (0.0000e+00)");
  time.update(0.75);
  time.update(0.25);
  loss.update(1.4567);
  loss.update(1.2345);
  top1.update(12.5, 16);
  top1.update(100, 16);
  EXPECT_EQ(time.text(), "Time  0.250 ( 0.500)");
  EXPECT_EQ(loss.text(), "Loss 1.2345e+00 (1.3456e+00)");
  EXPECT_EQ(top1.text(), "Acc@1 100.00 ( 56.25)");
  EXPECT_EQ(top1.average_text(), "Acc@1  56.25");
  loss.reset();
  EXPECT_EQ(loss.text(), "Loss 0.0000e+00 (0.0000e+00)");
}

TEST(AverageMeter, WeighsValuesByTheirCounts) {
  AverageMeter meter("x");
  EXPECT_EQ(meter.average(), 0.0);
  meter.update(1.0, 1);
  meter.update(4.0, 3);
  EXPECT_EQ(meter.value(), 4.0);
  EXPECT_EQ(meter.sum(), 13.0);
  EXPECT_EQ(meter.count(), 4);
  meter.update(9.0, 0);
  expect_error(ErrorCode::invalid_argument, HasSubstr("\"x\": count -1; expected 0 or more"),
               [&] { meter.update(9.0, -1); });
  EXPECT_EQ(meter.average(), 3.25);
}

TEST(AverageMeter, TakesTheLargestNumbersAndRefusesWideFormats) {
  AverageMeter meter("x", {.width = 64, .precision = 17});
  meter.update(-std::numeric_limits<double>::max());
  EXPECT_THAT(meter.average_text(), HasSubstr("-179769313486231570"));
  meter.update(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(meter.text(), HasSubstr("nan"));
  for (const MeterFormat format : {MeterFormat{.width = 65}, MeterFormat{.width = -1},
                                   MeterFormat{.precision = 18}, MeterFormat{.precision = -1}}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("\"x\""),
                 [&] { AverageMeter("x", format); });
  }
}

// Ranks see drawn numbers of values, some none; one process that sees all of them has the same.
TEST(MetersOfAllRanks, AreThoseOfOneProcess) {
  const Context world = init();
  std::mt19937_64 random = generator();
  std::vector<AverageMeter> own{AverageMeter("a"), AverageMeter("b"), AverageMeter("c")};
  std::vector<AverageMeter> one = own;
  for (int round = 0; round < 3; ++round) {
    for (int rank = 0; rank < world.size(); ++rank) {
      const auto updates = random() % 4;
      for (std::uint64_t i = 0; i < updates; ++i) {
        for (std::size_t meter = 0; meter < own.size(); ++meter) {
          const double value = static_cast<double>(random() % 1000) / 8;  // sums are exact
          const auto count = static_cast<std::int64_t>(random() % 50);
          one[meter].update(value, count);
          if (rank == world.rank()) own[meter].update(value, count);
        }
      }
    }
    const auto all = meters_of_all_ranks(world, own);
    ASSERT_EQ(all.size(), own.size());
    for (std::size_t meter = 0; meter < own.size(); ++meter) {
      EXPECT_EQ(all[meter].sum(), one[meter].sum());
      EXPECT_EQ(all[meter].count(), one[meter].count());
      EXPECT_EQ(all[meter].value(), own[meter].value());
    }
  }
}

TEST(MetersOfAllRanks, WorkInAProcessSetAndWithoutMeters) {
  const Context world = init();
  const ParitySet set(world);
  AverageMeter meter("rank");
  meter.update(world.rank(), 2);
  const auto all = meters_of_all_ranks(world, {meter}, "parity", set.id);
  double sum = 0;
  for (const int member : set.members) sum += 2 * member;
  EXPECT_EQ(all[0].sum(), sum);
  EXPECT_EQ(all[0].count(), 2 * static_cast<std::int64_t>(set.members.size()));
  EXPECT_TRUE(meters_of_all_ranks(world, {}).empty());
  barrier(world);
}

/// The target's class is among the k best where fewer than k classes have a larger output.
std::int64_t counted(const torch::Tensor& output, const torch::Tensor& target, std::int64_t k) {
  std::int64_t correct = 0;
  for (std::int64_t i = 0; i < output.size(0); ++i) {
    const auto own = output[i][target[i].item<std::int64_t>()];
    correct += output[i].gt(own).sum().item<std::int64_t>() < k ? 1 : 0;
  }
  return correct;
}

TEST(TopkCorrect, CountsWhatALoopCounts) {
  torch::manual_seed(seed());
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const torch::Tensor output = torch::randn({53, 12}, type);
    const torch::Tensor target = torch::randint(12, {53}, torch::kLong);
    const torch::Tensor correct = topk_correct(output, target, {1, 5, 12, 3});
    ASSERT_EQ(correct.sizes(), torch::IntArrayRef({4}));
    ASSERT_EQ(correct.scalar_type(), torch::kLong);
    EXPECT_EQ(correct[0].item<std::int64_t>(), counted(output, target, 1));
    EXPECT_EQ(correct[1].item<std::int64_t>(), counted(output, target, 5));
    EXPECT_EQ(correct[2].item<std::int64_t>(), 53);
    EXPECT_EQ(correct[3].item<std::int64_t>(), counted(output, target, 3));
  }
}

TEST(TopkCorrect, TakesNarrowTypesFewClassesAndNoSamples) {
  const torch::Tensor output = torch::tensor({{0.0, 2.0, 1.0}, {3.0, 1.0, 2.0}});
  const torch::Tensor target = torch::tensor({2, 1}, torch::kLong);
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kFloat}) {
    EXPECT_TRUE(topk_correct(output.to(type).requires_grad_(), target, {1, 2, 5})
                    .equal(torch::tensor({0, 1, 2}, torch::kLong)));
  }
  EXPECT_TRUE(topk_correct(output.slice(0, 0, 0), target.slice(0, 0, 0), {1, 5})
                  .equal(torch::zeros({2}, torch::kLong)));
  EXPECT_EQ(topk_correct(output, target, {}).numel(), 0);
}

TEST(TopkCorrect, RefusesOtherShapesAndTypes) {
  const torch::Tensor output = torch::zeros({4, 3});
  const torch::Tensor target = torch::zeros({4}, torch::kLong);
  const auto expect_refused = [](const std::string& text, const torch::Tensor& outputs,
                                 const torch::Tensor& targets,
                                 const std::vector<std::int64_t>& ks = {1}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(text),
                 [&] { topk_correct(outputs, targets, ks); });
  };
  expect_refused("target Long [3]", output, target.slice(0, 0, 3));
  expect_refused("target Float [4, 3]", output, output);
  expect_refused("output is Float [12]", output.flatten(), target);
  expect_refused("output is Long [4, 3]", output.to(torch::kLong), target);
  expect_refused("ks [1, 0]", output, target, {1, 0});
}

}  // namespace
}  // namespace hora::internal::test
