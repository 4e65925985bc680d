// The losses of 1, 2 and 4 ranks, at one global batch, are those of one process.
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <numeric>
#include <ostream>
#include <vector>

#include "tests/examples/vision/train/reference/training.h"

namespace vision::test {
namespace {

constexpr int side = 32;

enum class Norm {
  none,     ///< in the network
  running,  ///< by running statistics: the same for every image, whatever its batch
  of_rank,  ///< over the rank's part of the batch
  of_all_ranks,
};

struct Case {
  const char* name;
  const char* architecture;
  Norm norm;
  torch::ScalarType type;
  double tolerance;  ///< relative
};
std::ostream& operator<<(std::ostream& stream, const Case& value) {
  return stream << value.name;
}

Training training_of(const hora::Context& world, const Case& chosen) {
  const bool vgg = chosen.norm == Norm::none;
  Training training{.architecture = chosen.architecture,
                    .model = {.base_width = 8},
                    .optimizer = {.momentum = 0.9, .weight_decay = 1e-4},
                    .schedule = {.rate = vgg ? 0.02 : 0.1,
                                 .warmup_start = 0.005,
                                 .warmup_epochs = 1,
                                 .decay = hora::LearningRateDecay::cosine,
                                 .epochs = 4},
                    .transform = unchanged(side),
                    .batch = 16,
                    .epochs = 4,
                    .type = chosen.type,
                    .running_statistics = chosen.norm == Norm::running};
  if (vgg) training.model.dropout = 0;
  if (chosen.norm == Norm::of_all_ranks) {
    training.model.batch_norm = [&world](std::int64_t channels) {
      return torch::nn::AnyModule(
          hora::SyncBatchNorm(world, torch::nn::BatchNormOptions(channels)));
    };
  }
  return training;
}

/// Losses of one process with the whole batch, which needs no SyncBatchNorm.
std::vector<double> expected_of(Training training, const Dataset& data) {
  training.model.batch_norm = nullptr;
  return losses_of_one_process(training, data);
}

double mean(std::vector<double>::const_iterator begin, std::vector<double>::const_iterator end) {
  return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

class LossCurves : public testing::TestWithParam<Case> {
 protected:
  const hora::Context world_ = hora::init();
  const PlanarImages data_ = formula_data(160, side);
  const Training training_ = training_of(world_, GetParam());
};

// They differ in the order of sums, over the images of one batch, and what later steps make of it.
TEST_P(LossCurves, AreThoseOfOneProcessWithTheWholeBatch) {
  const std::vector<double> expected = expected_of(training_, data_);
  ASSERT_EQ(expected.size(), 40U);
  if (GetParam().norm == Norm::none) {
    EXPECT_LT(mean(expected.end() - 10, expected.end()),
              0.98 * mean(expected.begin(), expected.begin() + 10))
        << "nothing is learned from the first epoch to the last";
  }
  const double difference = largest_difference(world_, GetParam().name,
                                               losses_of_ranks(world_, training_, data_), expected);
  if (GetParam().norm == Norm::of_rank && world_.size() > 1) {
    EXPECT_GT(difference, 5e-4) << "BatchNorm's effect of smaller batches is not there";
  } else {
    EXPECT_LE(difference, GetParam().tolerance);
  }
}

// In float32 a sum in another order can make max-pooling choose another of two equal values: 2e-7
// with LibTorch 1.13, 5e-4 with 2.11. In float64 there are none.
INSTANTIATE_TEST_SUITE_P(
    All, LossCurves,
    testing::Values(Case{"vgg11", "vgg11", Norm::none, torch::kFloat, 1e-3},
                    Case{"vgg11_float64", "vgg11", Norm::none, torch::kDouble, 1e-12},
                    Case{"running_statistics", "resnet20", Norm::running, torch::kFloat, 1e-6},
                    Case{"batch_norm", "resnet20", Norm::of_rank, torch::kFloat, 1e-6},
                    Case{"sync_batch_norm", "resnet20", Norm::of_all_ranks, torch::kFloat, 1e-4}),
    [](const auto& test) { return test.param.name; });

class SamePartsLossCurves : public LossCurves {};

// Where one process takes the parts of the batch one after the other, nothing differs.
TEST_P(SamePartsLossCurves, AreThoseOfOneProcessToTheBit) {
  EXPECT_EQ(losses_of_ranks(world_, training_, data_),
            losses_of_one_process(training_, data_, world_.size()));
}

INSTANTIATE_TEST_SUITE_P(
    All, SamePartsLossCurves,
    testing::Values(Case{"vgg11", "vgg11", Norm::none, torch::kFloat, 0},
                    Case{"running_statistics", "resnet20", Norm::running, torch::kFloat, 0},
                    Case{"batch_norm", "resnet20", Norm::of_rank, torch::kFloat, 0}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace vision::test
