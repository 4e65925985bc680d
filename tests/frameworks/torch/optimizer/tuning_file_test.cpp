#include "frameworks/torch/optimizer/tuning_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::internal {
namespace {

using testing::HasSubstr;

TEST(TuningFile, GivesBackWhatWasPutIn) {
  std::string text = with_tuned_form("", "one", {4096, true});
  text = with_tuned_form(text, "other \"model\"", {77, true});
  text = with_tuned_form(text, "one", {8192, false});
  EXPECT_EQ(tuned_form(text, "one").value(), (BucketForm{8192, false}));
  EXPECT_EQ(tuned_form(text, "other \"model\"").value(), (BucketForm{77, true}));
  EXPECT_EQ(tuned_form(text, "third").value(), std::nullopt);
}

TEST(TuningFile, ASizeAloneIsOfWhatTheProgramHasChosen) {
  constexpr const char* kText = R"({"hora_tuning": 1, "bucket_sizes": {"one": 5}})";
  EXPECT_EQ(tuned_form(kText, "one").value(), (BucketForm{5, true}));
}

TEST(TuningFile, RefusesWhatIsNoneOfItsOwn) {
  const auto refusal = [](std::string_view text) {
    const auto found = tuned_form(text, "key");
    return found ? std::string("taken") : found.error();
  };
  for (const char* text : {"", "{", "[]", "7", "nonsense"}) {
    EXPECT_THAT(refusal(text), HasSubstr("no JSON object")) << text;
  }
  for (const char* text : {"{}", R"({"hora_tuning": 2})", R"({"hora_tuning": "1"})"}) {
    EXPECT_THAT(refusal(text), HasSubstr("\"hora_tuning\"")) << text;
  }
  EXPECT_THAT(refusal(R"({"hora_tuning": 1, "bucket_sizes": 3})"), HasSubstr("\"bucket_sizes\""));
  for (const char* size : {"0", "-4", "1.5", "\"4\"", "null", "{}"}) {
    const std::string text =
        R"({"hora_tuning": 1, "bucket_sizes": {"key": )" + std::string(size) + "}}";
    EXPECT_THAT(refusal(text), HasSubstr("above 0")) << text;
  }
  for (const char* compressed : {"3", R"({"key": 1})", R"({"key": null})"}) {
    const std::string text = R"({"hora_tuning": 1, "bucket_sizes": {"key": 4}, "compressed": )" +
                             std::string(compressed) + "}";
    EXPECT_THAT(refusal(text), HasSubstr("compressed")) << text;
  }
  EXPECT_EQ(refusal(R"({"hora_tuning": 1})"), "taken");
}

}  // namespace
}  // namespace hora::internal
