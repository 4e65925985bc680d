// NaN and Inf in losses and gradients: what is found is the same on every rank, and a step that is
// left out leaves no trace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::FieldsAre;
using testing::HasSubstr;
using testing::Optional;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const FiniteCheckOptions kSkip{.policy = NonFinitePolicy::skip};

/// A training whose gradients and losses the test can damage.
struct CheckedTraining : Training {
  explicit CheckedTraining(const Context& world, const FiniteCheckOptions& options = kSkip,
                           const DistributedOptimizerOptions& averaging = {})
      : Training(world, averaging), finite(world, network->named_parameters(), options) {}

  /// With the values of `damage` in the last elements of gradients.
  torch::Tensor damaged(torch::Tensor loss) {
    const auto parameters = network->named_parameters();
    for (const auto& [name, value] : damage) {
      loss = loss + parameters[name].flatten()[-1] * value;
    }
    return loss;
  }
  torch::Tensor backward(const Batch& batch, double factor = 1.0) {
    const torch::Tensor loss = loss_of(network, batch) * factor;
    damaged(loss).backward();
    return loss;
  }
  /// A whole step, if it is finite.
  std::optional<NonFinite> step(const Batch& batch, double factor = 1.0) {
    optimizer.zero_grad();
    const auto found = finite.check(backward(batch, factor));
    if (found) {
      optimizer.zero_grad();
    } else {
      optimizer.step();
    }
    return found;
  }

  std::map<std::string, double> damage;
  FiniteCheck finite;
};

class FiniteCheckTest : public WorldTest {
 protected:
  Batch batch(int step = 0) const { return my_batch(world_, step); }
  std::string of_last() const { return " of rank " + std::to_string(world_.size() - 1); }
};

std::string text_of(const std::optional<NonFinite>& found) {
  return found ? found->text() : "";
}

TEST_F(FiniteCheckTest, OneRanksGradientIsNamedOnAll) {
  CheckedTraining training(world_);
  EXPECT_EQ(training.step(batch()), std::nullopt);
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (world_.rank() == rank) training.damage["3.weight"] = -kInfinity;
    const auto found = training.step(batch());
    training.damage.clear();
    EXPECT_EQ(text_of(found), "Inf in the gradient of '3.weight' of rank " + std::to_string(rank));
    EXPECT_THAT(found, Optional(FieldsAre(rank, "3.weight", false, false)));
    EXPECT_EQ(training.step(batch()), std::nullopt);
  }
  const auto found = training.step(batch(), world_.rank() == 0 ? kNan : 1.0);
  // Before the gradients that it spoils.
  EXPECT_EQ(text_of(found), "NaN in the loss of rank 0");
  EXPECT_THAT(found, Optional(FieldsAre(0, "loss", true, true)));
  EXPECT_EQ(training.step(batch()), std::nullopt);
}

TEST_F(FiniteCheckTest, OfSeveralTheFirstTensorAndItsLowestRank) {
  CheckedTraining training(world_);
  // The last rank alone has the second parameter; all but the first have the fourth.
  if (last()) training.damage["0.bias"] = kInfinity;
  if (world_.rank() > 0 || world_.size() == 1) training.damage["3.bias"] = kNan;
  EXPECT_EQ(text_of(training.step(batch())), "Inf in the gradient of '0.bias'" + of_last());
  training.damage.clear();
  if (world_.rank() > 0 || world_.size() == 1) training.damage["3.bias"] = kNan;
  if (last()) training.damage["5.weight"] = kInfinity;
  EXPECT_EQ(text_of(training.step(batch())), "NaN in the gradient of '3.bias' of rank " +
                                                 std::to_string(world_.size() == 1 ? 0 : 1));
}

TEST_F(FiniteCheckTest, EveryRankThrowsTheSameErrorAndTrainsOn) {
  CheckedTraining training(world_, {});
  CheckedTraining never(world_, {});
  if (last()) training.damage["0.weight"] = kNan;
  training.optimizer.zero_grad();
  const auto loss = training.backward(batch());
  const Error error = expect_error(ErrorCode::invalid_argument,
                                   HasSubstr("NaN in the gradient of '0.weight'" + of_last()),
                                   [&] { training.finite.check(loss); });
  EXPECT_EQ(error.rank(), world_.size() - 1);
  EXPECT_EQ(error.tensor(), "0.weight");
  training.damage.clear();
  expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("the loss"), HasSubstr("Long")),
               [&] { training.finite.check(torch::ones({}, torch::kLong)); });
  EXPECT_EQ(training.step(batch(1)), std::nullopt);
  never.step(batch(1));
  expect_same_bits(training.network->parameters(), never.network->parameters());
}

TEST_F(FiniteCheckTest, IgnoringNothingIsSentNorFound) {
  CheckedTraining training(world_, {.policy = NonFinitePolicy::ignore});
  training.damage["0.weight"] = kNan;
  const auto loss = training.backward(batch());
  if (world_.rank() == 0) {
    EXPECT_EQ(training.finite.check(loss * kNan), std::nullopt) << "alone, and does not wait";
  }
  barrier(world_);
}

TEST_F(FiniteCheckTest, PassesThatAreAddedUpCountUntilTheNextCheck) {
  CheckedTraining training(world_, kSkip, {.backward_passes_per_step = 2});
  if (last()) training.damage["3.bias"] = kInfinity;
  training.optimizer.zero_grad();
  training.backward(batch(0));
  training.damage.clear();
  EXPECT_EQ(text_of(training.finite.check(training.backward(batch(1)))),
            "Inf in the gradient of '3.bias'" + of_last());
  training.optimizer.zero_grad();
  {
    const auto guard = training.optimizer.no_sync();
    training.backward(batch(0));
  }
  training.backward(batch(0));
  EXPECT_EQ(training.finite.check(training.backward(batch(1))), std::nullopt);
  training.optimizer.step();
}

TEST_F(FiniteCheckTest, WithoutAnOptimizerAndWithWhatIsFrozenOrSparse) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true));
  const auto late = torch::zeros({3});
  FiniteCheck finite(world_, {{"embedding", embedding->weight}, {"late", late}}, kSkip);
  const auto loss = [&] { return embedding->forward(torch::tensor({1, 2})).sum() + late.sum(); };
  const double factor = last() ? kInfinity : 1.0;
  (loss() * factor).backward();
  EXPECT_EQ(text_of(finite.check({})), "Inf in the gradient of 'embedding'" + of_last());
  late.requires_grad_();
  EXPECT_EQ(finite.check(loss().detach()), std::nullopt);
  { const FiniteCheck gone(world_, {{"late", late}}, kSkip); }
  FiniteCheck moved = std::move(finite);
  late.sum().mul(factor).backward();
  EXPECT_EQ(text_of(moved.check({})), "Inf in the gradient of 'late'" + of_last());
  const auto complex = torch::zeros({2}, torch::requires_grad().dtype(torch::kComplexFloat));
  FiniteCheck of_complex(world_, {{"complex", complex}}, kSkip);
  for (const double value : {1.0, kInfinity}) {
    complex.backward(torch::complex(torch::ones({2}), torch::full({2}, value)));
    EXPECT_EQ(of_complex.check({}).has_value(), value == kInfinity);
  }
}

TEST_F(FiniteCheckTest, RanksThatHaveJoinedCountAsFinite) {
  CheckedTraining training(world_);
  for (int step = 0; step <= world_.rank(); ++step) {
    const bool bad = step == world_.size() - 1;
    EXPECT_EQ(text_of(training.step(batch(step), bad ? kNan : 1.0)),
              bad ? "NaN in the loss" + of_last() : "");
  }
  training.optimizer.join();
}

TEST_F(FiniteCheckTest, RanksThatDisagreeAreAllTold) {
  if (world_.size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  auto network = small_network(seed());
  FiniteCheckOptions options = kSkip;
  if (last()) options.policy = NonFinitePolicy::ignore;
  const auto error =
      expect_error(ErrorCode::mismatch, AllOf(HasSubstr("policy skip"), HasSubstr("policy ignore")),
                   [&] { FiniteCheck(world_, network->named_parameters(), options); });
  EXPECT_EQ(error.rank(), world_.size() - 1);
}

// A rank's values are damaged in the second and third of five batches.
TEST_F(FiniteCheckTest, AStepLeftOutLeavesNoTrace) {
  const DistributedOptimizerOptions all[] = {{},
                                             {.compression = Compression::float16},
                                             {.compression = Compression::bfloat16},
                                             {.sharding = Sharding::state}};
  for (const auto& options : all) {
    CheckedTraining training(world_, kSkip, options), never(world_, kSkip, options);
    const auto both = [&](int step) {
      EXPECT_EQ(training.step(batch(step)), std::nullopt);
      EXPECT_EQ(never.step(batch(step)), std::nullopt);
    };
    both(0);  // momentum is not 0
    if (last()) training.damage["3.weight"] = kInfinity;
    EXPECT_TRUE(training.step(batch(1)).has_value());
    training.damage.clear();
    EXPECT_TRUE(training.step(batch(2), world_.rank() == 0 ? kNan : 1.0).has_value());
    both(3);
    both(4);
    expect_same_bits(training.network->parameters(), never.network->parameters());
  }
}

TEST_F(FiniteCheckTest, TheErrorMemoryOfAHookStaysFinite) {
  for (const std::shared_ptr<GradientHook>& hook :
       {std::shared_ptr<GradientHook>(std::make_shared<PowerSgd>(PowerSgdOptions{.start_step = 0})),
        std::shared_ptr<GradientHook>(std::make_shared<TopK>(TopKOptions{.share = 0.5}))}) {
    CheckedTraining training(world_, kSkip, {.hook = hook});
    if (last()) training.damage["3.weight"] = kInfinity;
    EXPECT_TRUE(training.step(batch(0)).has_value());
    training.damage.clear();
    EXPECT_TRUE(training.step(batch(1), world_.rank() == 0 ? kNan : 1.0).has_value());
    for (int step = 2; step < 5; ++step) EXPECT_EQ(training.step(batch(step)), std::nullopt);
    for (const auto& parameter : training.network->parameters()) {
      EXPECT_TRUE(parameter.isfinite().all().item<bool>()) << hook->describe();
    }
  }
}

TEST_F(FiniteCheckTest, AScalersInfiniteGradientsAreItsOwnMatter) {
  CheckedTraining training(world_, {.policy = NonFinitePolicy::raise, .gradients = false});
  GradScaler scaler(training.optimizer, {.initial_scale = 1024.0});
  const auto before = copies_of(training.network->parameters());
  training.optimizer.zero_grad();
  if (last()) training.damage["3.weight"] = kInfinity;
  const auto loss = loss_of(training.network, batch());
  scaler.scale(training.damaged(loss)).backward();
  EXPECT_EQ(training.finite.check(loss), std::nullopt);
  EXPECT_FALSE(scaler.step());
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 512.0);
  expect_same_bits(training.network->parameters(), before);

  training.damage.clear();
  const double factor = last() ? kNan : 1.0;
  expect_error(ErrorCode::invalid_argument, HasSubstr("NaN in the loss" + of_last()),
               [&] { training.finite.check(loss.detach() * factor); });
}

/// Checks of losses, as "", "Inf" or "NaN".
class LossCheck : public WorldTest {
 protected:
  std::string check(const torch::Tensor& loss) {
    const auto found = finite_.check(loss);
    return !found ? "" : found->is_nan ? "NaN" : "Inf";
  }

  FiniteCheck finite_{world_, Named(), kSkip};
};

constexpr torch::ScalarType kLossTypes[] = {torch::kFloat, torch::kDouble, torch::kHalf,
                                            torch::kBFloat16};

TEST_F(LossCheck, EveryPlaceIsLookedAt) {
  for (const auto type : kLossTypes) {
    for (const std::int64_t place : {0, 1, 63, 64, 999, 1000}) {
      for (const double sign : {1.0, -1.0}) {
        SCOPED_TRACE(testing::Message() << type << ", place " << place);
        torch::Tensor values = torch::ones({1001}, type);
        EXPECT_EQ(check(values), "");
        values[place] = sign * kInfinity;
        EXPECT_EQ(check(values), "Inf");
        values[(place + 500) % 1001] = -sign * kInfinity;
        EXPECT_EQ(check(values), "Inf") << "of both signs";
        values[1000 - place] = kNan;
        EXPECT_EQ(check(values), "NaN");
      }
    }
  }
}

TEST_F(LossCheck, StridesThatAreNotDenseAndSumsThatOverflow) {
  for (const auto type : kLossTypes) {
    SCOPED_TRACE(type);
    torch::Tensor values = torch::ones({8, 6}, type);
    values[3][4] = kInfinity;
    EXPECT_EQ(check(values.t()), "Inf");
    EXPECT_EQ(check(values.slice(1, 4, 5)), "Inf");
    EXPECT_EQ(check(values.slice(1, 0, 4)), "");
    EXPECT_EQ(check(values[3][4].expand({5, 5})), "Inf");
    EXPECT_EQ(check(values.narrow(0, 0, 0)), "") << "no values";
    const double largest = type == torch::kDouble ? std::numeric_limits<double>::max()
                           : type == torch::kHalf ? 65504.0
                                                  : 3.3e38;
    EXPECT_EQ(check(torch::full({1000}, largest, type)), "");
    EXPECT_EQ(check(torch::full({1000}, -largest, type)), "");
  }
}

}  // namespace
}  // namespace hora::internal::test
