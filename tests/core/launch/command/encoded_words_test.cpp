#include "core/launch/command/encoded_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;

TEST(EncodedWords, CanBeReadByPeople) {
  EXPECT_EQ(encode_words({"./train", "--epochs", "3"}), "./train,--epochs,3");
  EXPECT_EQ(encode_words({"--odd", "a b", "", ":", "x,y", "%", "\xff"}),
            "%2D-odd,a%20b,,%3A,x%2Cy,%25,%FF");
}

TEST(EncodedWords, SurviveTheRoundTrip) {
  auto random = internal::test::generator();
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int round = 0; round < 1000; ++round) {
    std::vector<std::string> words(static_cast<std::size_t>(1 + draw(5)));
    for (std::string& word : words) {
      for (int i = draw(6); i > 0; --i)
        word += static_cast<char>(draw(1) ? draw(255) : '-' + draw(3));
    }
    const std::string text = encode_words(words);
    EXPECT_FALSE(text.starts_with('-'));
    EXPECT_TRUE(
        std::ranges::none_of(text, [](char c) { return c <= ' ' || c == ':' || c == '\''; }));
    const auto decoded = decode_words(text);
    ASSERT_TRUE(decoded) << decoded.error();
    EXPECT_EQ(*decoded, words);
  }
}

TEST(EncodedWords, RefuseOtherTexts) {
  for (const char* const text : {"a b", "%", "%4", "%4g", "a:", "%aa"}) {
    const auto words = decode_words(text);
    ASSERT_FALSE(words) << text;
    EXPECT_THAT(words.error(), HasSubstr("not encoded: byte "));
  }
}

}  // namespace
}  // namespace hora::launch
