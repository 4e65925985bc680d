// Decisions of the optimizer that are values in, values out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <set>

#include "frameworks/torch/optimizer/layout.h"
#include "frameworks/torch/optimizer/optimizer.h"
#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class MatchParameters : public testing::Test {
 protected:
  /// Names of those that an optimizer of these groups averages.
  std::vector<std::string> names(const torch::OrderedDict<std::string, torch::Tensor>& named,
                                 const std::vector<std::vector<torch::Tensor>>& groups) {
    std::vector<torch::optim::OptimizerParamGroup> all(groups.begin(), groups.end());
    const torch::optim::SGD sgd(all, 0.1);
    const auto found = match_parameters(named, sgd);
    if (!found) return {found.error()};
    std::vector<std::string> result;
    for (const Parameter& parameter : *found) result.push_back(parameter.name);
    return result;
  }
  const torch::Tensor a = torch::ones({1}), b = torch::ones({1}), c = torch::ones({1});
};

TEST_F(MatchParameters, TakesThoseInGroupsInRegistrationOrder) {
  EXPECT_THAT(names({{"a", a}, {"b", b}, {"c", c}}, {{c}, {a}}), ElementsAre("a", "c"));
  EXPECT_THAT(names({{"a", a}, {"b", b}, {"c", c}}, {{}}), IsEmpty());
}

TEST_F(MatchParameters, TiedWeightCountsOnceUnderItsFirstName) {
  EXPECT_THAT(names({{"encoder", a}, {"other", b}, {"decoder", a}}, {{a, b, a}}),
              ElementsAre("encoder", "other"));
}

TEST_F(MatchParameters, ParameterWithoutNameIsAnErrorThatSaysWhere) {
  EXPECT_THAT(names({{"a", a}}, {{a}, {a, b}}),
              ElementsAre(AllOf(HasSubstr("parameter 1"), HasSubstr("group 1"))));
}

TEST(Describe, NamesTypeShapeAndUnusualStrides) {
  const auto of = [](at::IntArrayRef shape, at::IntArrayRef strides, at::ScalarType type) {
    return describe("w", torch::empty_strided(shape, strides, type));
  };
  EXPECT_EQ(of({2, 3}, {3, 1}, torch::kFloat), "'w' float32 [2, 3]");
  EXPECT_EQ(of({2, 3}, {1, 2}, torch::kDouble), "'w' float64 [2, 3] with strides [1, 2]");
  EXPECT_EQ(of({}, {}, torch::kHalf), "'w' float16 []");
  EXPECT_EQ(of({2, 1}, {1, 7}, torch::kFloat), "'w' float32 [2, 1]")
      << "the stride of an extent of 1 means nothing";
  EXPECT_EQ(describe("a\nb", torch::ones({})), "'a\\nb' float32 []");
}

TEST(LossScale, GrowsAfterTheIntervalBacksOffAtOnceAndStaysWithinFloat32) {
  const GradScalerOptions options{.backoff_factor = 0.25, .growth_interval = 3};
  const double most = std::numeric_limits<float>::max();
  const double least = std::numeric_limits<float>::min();
  const struct {
    LossScale now;
    bool finite;
    LossScale next;
  } cases[] = {{{1024.0, 0}, true, {1024.0, 1}}, {{1024.0, 1}, true, {1024.0, 2}},
               {{1024.0, 2}, true, {2048.0, 0}}, {{1024.0, 2}, false, {256.0, 0}},
               {{most, 2}, true, {most, 0}},     {{least, 0}, false, {least, 0}}};
  for (const auto& each : cases) {
    EXPECT_EQ(next_scale(each.now, options, each.finite), each.next) << each.now.scale;
  }
}

TEST(LossScale, OptionsOutOfRangeAreRefusedByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<GradScalerOptions, const char*> cases[] = {
      {{.initial_scale = 0.0}, "initial_scale is 0"},
      {{.growth_factor = 0.9}, "growth_factor is 0.9"},
      {{.backoff_factor = 1.1}, "backoff_factor is 1.1"},
      {{.backoff_factor = 0.0}, "backoff_factor is 0"},
      {{.growth_interval = 0}, "growth_interval is 0"},
      {{.initial_scale = nan}, "nan"}};
  for (const auto& [options, text] : cases) {
    test::expect_error(ErrorCode::invalid_argument, HasSubstr(text),
                       [&options = options] { check_options(options); });
  }
  check_options({});
}

TEST(LossScale, TheDescriptionTellsOptionsApart) {
  std::set<std::string> texts;
  for (const GradScalerOptions& options :
       std::vector<GradScalerOptions>{{},
                                      {.initial_scale = 65536.00000000001},
                                      {.growth_factor = 2.5},
                                      {.backoff_factor = 0.25},
                                      {.growth_interval = 1999},
                                      {.enabled = false}}) {
    EXPECT_TRUE(texts.insert(describe(options)).second);
  }
}

TEST(StepLanes, EachWayOfCallsHasALane) {
  std::set<std::size_t> lanes;
  for (int steps = 0; steps < 2; ++steps) {
    for (int zero_grads = 0; zero_grads < 4; ++zero_grads) {
      const std::size_t lane = lane_of({steps, zero_grads});
      EXPECT_LT(lane, step_lanes);
      EXPECT_TRUE(lanes.insert(lane).second);
    }
  }
  EXPECT_EQ(lane_of({5, 9}), lane_of({1, 3})) << "more calls are not told apart";
}

/// All ranks' answer to what they say.
RoundAnswer answer_to(const std::vector<RoundFacts>& facts) {
  const int size = static_cast<int>(facts.size());
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < size; ++rank) {
    const auto message = message_of(facts[static_cast<std::size_t>(rank)], rank, size);
    all.resize(message.size(),
               std::numeric_limits<std::int64_t>::min());  // as joined ranks have it
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::max(all[i], message[i]);
  }
  return answer_of(all, facts.front());
}

TEST(RoundAnswer, ShowsWhatOneRankAloneSays) {
  const RoundFacts usual{.updates = true, .end = RoundEnd::step, .compared = {-7, 3}};
  const auto with = [&](auto change) {
    RoundFacts other = usual;
    change(other);
    return answer_to({usual, other, usual});
  };
  const RoundAnswer same = with([](auto&) {});
  EXPECT_TRUE(same.one_step && same.all_update && same.same_values && same.as_many_values);
  EXPECT_FALSE(same.any_undecided || same.ends_differ);
  for (std::size_t lane = 1; lane < step_lanes; ++lane) {
    EXPECT_FALSE(with([&](auto& facts) { facts.step_lane = lane; }).one_step) << lane;
  }
  EXPECT_FALSE(with([](auto& facts) { facts.updates = false; }).all_update);
  EXPECT_TRUE(with([](auto& facts) { facts.end = RoundEnd::undecided; }).any_undecided);
  EXPECT_TRUE(with([](auto& facts) { facts.end = RoundEnd::discard; }).ends_differ);
  for (const std::int64_t checksum : {-8, 0, 7}) {
    EXPECT_FALSE(with([&](auto& facts) { facts.compared.checksum = checksum; }).same_values);
  }
  EXPECT_FALSE(with([](auto& facts) { facts.compared.values = 4; }).as_many_values);
  EXPECT_EQ(with([](auto& facts) { facts.step_time = std::chrono::nanoseconds(9); }).step_time,
            std::chrono::nanoseconds(9));
}

TEST(RoundAnswer, HasWhatAnyRankHasAndTheFirstRanksOrder) {
  const RoundAnswer answer = answer_to({{.present = {true, false, false}, .arrivals = {2, 0, 1}},
                                        {.present = {false, false, true}, .arrivals = {0, 1, 2}}});
  EXPECT_THAT(answer.present, ElementsAre(true, false, true));
  EXPECT_THAT(answer.arrivals, ElementsAre(2, 0, 1));
}

}  // namespace
}  // namespace hora::internal
