#include "frameworks/torch/optimizer/tuning_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::internal {
namespace {

using testing::HasSubstr;

TEST(TuningFile, GivesBackWhatWasPutIn) {
  std::string text = with_tuned_size("", "one", 4096);
  text = with_tuned_size(text, "other \"model\"", 77);
  text = with_tuned_size(text, "one", 8192);
  EXPECT_EQ(tuned_size(text, "one").value(), 8192U);
  EXPECT_EQ(tuned_size(text, "other \"model\"").value(), 77U);
  EXPECT_EQ(tuned_size(text, "third").value(), std::nullopt);
}

TEST(TuningFile, RefusesWhatIsNoneOfItsOwn) {
  const auto refusal = [](std::string_view text) {
    const auto found = tuned_size(text, "key");
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
  EXPECT_EQ(refusal(R"({"hora_tuning": 1})"), "taken");
}

}  // namespace
}  // namespace hora::internal
