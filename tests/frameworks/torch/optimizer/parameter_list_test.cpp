#include "frameworks/torch/optimizer/parameter_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Groups = std::vector<std::vector<const void*>>;

// Any addresses will do.
const int a = 0, b = 0, c = 0;

TEST(MatchParameters, TakesThoseInGroupsInRegistrationOrder) {
  const std::vector<NamedIdentity> named{{"a", &a}, {"b", &b}, {"c", &c}};
  EXPECT_THAT(match_parameters(named, Groups{{&c}, {&a}}).value(), ElementsAre(0, 2));
  EXPECT_THAT(match_parameters(named, Groups{}).value(), IsEmpty());
}

TEST(MatchParameters, TiedWeightCountsOnceUnderItsFirstName) {
  const std::vector<NamedIdentity> named{{"encoder", &a}, {"other", &b}, {"decoder", &a}};
  EXPECT_THAT(match_parameters(named, Groups{{&a, &b, &a}}).value(), ElementsAre(0, 1));
}

TEST(MatchParameters, OneNameForTwoParametersIsAnError) {
  const std::vector<NamedIdentity> named{{"weight", &a}, {"weight", &b}};
  EXPECT_THAT(match_parameters(named, Groups{{&a}}).error(), HasSubstr("'weight'"));
}

TEST(MatchParameters, ParameterWithoutNameIsAnErrorThatSaysWhere) {
  const std::vector<NamedIdentity> named{{"a", &a}};
  EXPECT_THAT(match_parameters(named, Groups{{&a}, {&a, &b}}).error(),
              AllOf(HasSubstr("parameter 1"), HasSubstr("group 1")));
}

TEST(Describe, NamesTypeShapeAndUnusualStrides) {
  EXPECT_EQ(describe("w", DataType::float32, {2, 3}, {3, 1}), "'w' float32 [2, 3]");
  EXPECT_EQ(describe("w", DataType::float64, {2, 3}, {1, 2}),
            "'w' float64 [2, 3] with strides [1, 2]");
  EXPECT_EQ(describe("s", DataType::float16, {}, {}), "'s' float16 []");
  // The stride of an extent of 1 means nothing.
  EXPECT_EQ(describe("w", DataType::float32, {2, 1}, {1, 7}), "'w' float32 [2, 1]");
  EXPECT_EQ(describe("a\nb", DataType::float32, {}, {}), "'a\\nb' float32 []");
}

TEST(FirstDifference, FindsLinesAndMissingOnes) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(first_difference(Lines{"a", "b"}, Lines{"a", "b"}), std::nullopt);
  EXPECT_EQ(first_difference(Lines{"a", "b"}, Lines{"a", "c"}), 1U);
  EXPECT_EQ(first_difference(Lines{"a"}, Lines{"a", "c"}), 1U);
  EXPECT_EQ(first_difference(Lines{"a", "c"}, Lines{"a"}), 1U);
  EXPECT_EQ(first_difference(Lines{}, Lines{}), std::nullopt);
}

TEST(Lines, JoinAndSplitAreInverse) {
  for (const std::vector<std::string>& lines :
       {std::vector<std::string>{}, {"one"}, {"one", "", "three"}}) {
    EXPECT_EQ(split_lines(join_lines(lines)), lines);
  }
}

}  // namespace
}  // namespace hora::internal
