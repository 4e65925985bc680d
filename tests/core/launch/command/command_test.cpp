#include "core/launch/command/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/launch/control/child_process.h"
#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;

TEST(DryRun, QuotesWhatAShellWouldRead) {
  EXPECT_EQ(as_shell_word("/usr/bin/a-b_c:1,2"), "/usr/bin/a-b_c:1,2");
  EXPECT_EQ(as_shell_word(""), "''");
  EXPECT_EQ(as_shell_word("a b"), "'a b'");
  EXPECT_EQ(as_shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(as_shell_word("^slurm"), "'^slurm'");
}

TEST(DryRun, PutsVariablesFirst) {
  EXPECT_EQ(as_shell_line({{"mpirun", "-np", "2", "a b"}, {{"A", "1"}, {"B", "x y"}}}),
            "A=1 B='x y' mpirun -np 2 'a b'");
  EXPECT_EQ(as_shell_line({{"A=1", "b=2"}, {}}), "'A=1' b=2");
}

TEST(DryRun, IsReadBackByAShell) {
  auto random = internal::test::generator();
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int round = 0; round < 50; ++round) {
    Command command{{"printf", "[%s]"}, {}};
    std::string expected;
    for (int words = draw(4) + 1; words > 0; --words) {
      std::string word;
      for (int i = draw(8); i > 0; --i) word += static_cast<char>(1 + draw(126));
      command.arguments.push_back(word);
      expected += "[" + word + "]";
    }
    const auto output =
        captured_output({"/bin/sh", "-c", as_shell_line(command)}, std::chrono::seconds(20));
    ASSERT_TRUE(output) << output.error();
    EXPECT_EQ(output->text, expected);
  }
}

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
