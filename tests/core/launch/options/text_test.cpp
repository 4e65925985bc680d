#include "core/launch/options/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::launch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Text, TrimsSpacesAroundOnly) {
  EXPECT_EQ(trimmed(" \ta b\r\n"), "a b");
  EXPECT_EQ(trimmed(" \t"), "");
}

TEST(Text, SplitsAtEachSeparator) {
  EXPECT_THAT(split("a,,b,", ','), ElementsAre("a", "", "b", ""));
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_THAT(split_at_spaces("  a \t b\r"), ElementsAre("a", "b"));
  EXPECT_THAT(split_at_spaces(" "), IsEmpty());
}

TEST(Text, JoinsAroundTheMiddle) {
  EXPECT_EQ(without_spaces_around("a slots = 2 max_slots= 3", '='), "a slots=2 max_slots=3");
  EXPECT_EQ(without_spaces_around(" = b", '='), "=b");
  EXPECT_EQ(without_spaces_around("a =", '='), "a=");
}

TEST(Text, IntegersAreWholeAndWithinBounds) {
  EXPECT_EQ(parse_integer("7", 0, 9), 7);
  EXPECT_EQ(parse_integer("0", 0, 9), 0);
  for (const char* wrong :
       {"", " 7", "7 ", "+7", "-1", "10", "7.0", "0x7", "seven", "99999999999999999999"}) {
    const auto number = parse_integer(wrong, 0, 9);
    ASSERT_FALSE(number) << wrong;
    EXPECT_EQ(number.error(), "expected a whole number from 0 to 9");
  }
}

TEST(Text, WordsAreSplitAsAShellDoes) {
  EXPECT_THAT(*split_words("--mca btl  self,tcp"), ElementsAre("--mca", "btl", "self,tcp"));
  EXPECT_THAT(*split_words("'a b' \"c d\" e\\ f g'h'\"i\""),
              ElementsAre("a b", "c d", "e f", "ghi"));
  EXPECT_THAT(*split_words("'' \"\""), ElementsAre("", ""));
  EXPECT_THAT(*split_words("\"a\\\"b\\\\c\\d\" 'e\\'"), ElementsAre("a\"b\\c\\d", "e\\"));
  EXPECT_THAT(*split_words(" "), IsEmpty());
}

TEST(Text, NothingIsExpanded) {
  EXPECT_THAT(*split_words("$HOME `id` * ~ ; | && $(id)"),
              ElementsAre("$HOME", "`id`", "*", "~", ";", "|", "&&", "$(id)"));
}

TEST(Text, OpenQuotesAreErrors) {
  EXPECT_EQ(split_words("a 'b").error(), "the quote ' is not closed");
  EXPECT_EQ(split_words("\"a\\\"").error(), "the quote \" is not closed");
}

}  // namespace
}  // namespace hora::launch
