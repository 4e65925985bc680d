#include "core/base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/printable.h>

#include <algorithm>
#include <climits>
#include <random>
#include <vector>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;

using namespace std::string_literals;
using testing::EndsWith;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

TEST(Printable, ControlCharactersAreEscaped) {
  EXPECT_EQ(printable("a\nb\rc\td"), "a\\nb\\rc\\td");
  EXPECT_EQ(printable("\x1b[31mred\x07\x7f"), "\\x1b[31mred\\x07\\x7f");
  EXPECT_EQ(printable("a\0b"s), "a\\x00b");
}

TEST(Printable, ControlsBeyondAsciiAreEscaped) {
  EXPECT_EQ(printable("\u009b31m"), "\\u009b31m") << "C1";
  EXPECT_EQ(printable("a\u0085b\u2028c\u2029"), "a\\u0085b\\u2028c\\u2029") << "ends of lines";
  EXPECT_EQ(printable("\u202e\u2066\u200f\u061c"), "\\u202e\\u2066\\u200f\\u061c") << "directions";
  EXPECT_EQ(printable("\u00a0\u2030\u2065"), "\u00a0\u2030\u2065") << "their neighbours";
}

TEST(Printable, WhatIsNoUtf8IsEscaped) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\x9b"), "\\x9b") << "C1 of an eight-bit terminal";
  EXPECT_EQ(printable("\xc0\x8a"), "\\xc0\\x8a") << "a newline, but too long";
  EXPECT_EQ(printable("\xe0\x80\x8a"), "\\xe0\\x80\\x8a");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(printable("\xc3"), "\\xc3") << "cut";
  EXPECT_EQ(printable("\xe2\x82x"), "\\xe2\\x82x");
}

TEST(Printable, OfLongTextsTheMiddleIsLeftOut) {
  const std::string text = printable("begin" + std::string(1 << 20, 'x') + "end");
  EXPECT_THAT(text, StartsWith("beginxxx"));
  EXPECT_THAT(text, EndsWith("xxxend"));
  EXPECT_THAT(text, HasSubstr(std::to_string((1 << 20) + 8 - 12252 - 4084) + " bytes left out"));
  EXPECT_LE(text.size(), kLongestMessage);
  EXPECT_EQ(printable(std::string(100, 'x'), 100), std::string(100, 'x'));
}

TEST(Printable, AppliedOnceMoreItChangesNothing) {
  std::mt19937_64 random = test::generator();
  // Pieces of every kind, so that cuts and escapes meet them in all ways.
  const std::string pieces[] = {"a",  "\n", "\x1b", "ö",        "\u009b",
                                "重", "𝛼",  "\xff", "\xe2\x82", "\0"s};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (auto left = random() % 200; left > 0; --left) text += pieces[random() % std::size(pieces)];
    const std::size_t longest = 64 + random() % 200;
    const std::string once = printable(text, longest);
    EXPECT_LE(once.size(), longest);
    EXPECT_EQ(printable(once, longest), once);
    const auto forbidden = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    EXPECT_TRUE(std::ranges::none_of(once, forbidden)) << once;
  }
}

TEST(TensorText, WithoutANameItSaysWhatWasCalled) {
  EXPECT_EQ(tensor_text(""), "an unnamed tensor");
  EXPECT_EQ(tensor_text("hora.unnamed.allreduce.0"), "the unnamed allreduce");
  EXPECT_EQ(tensor_text("hora.unnamed.barrier.1"), "the unnamed barrier in slot 1");
  EXPECT_EQ(tensor_text("hora.unnamed."), "the unnamed ");
}

TEST(TensorText, OwnCalls) {
  EXPECT_EQ(tensor_text("hora.join"), "join()");
  EXPECT_EQ(tensor_text("hora.process_sets.add"), "add_process_set()");
  EXPECT_EQ(tensor_text("hora.process_sets.remove"), "remove_process_set()");
  EXPECT_EQ(tensor_text("hora.joined"), "tensor \"hora.joined\"");
}

TEST(RanksText, WritesRunsOfThreeAndMoreAsRanges) {
  const auto text = [](const std::vector<int>& ranks) { return ranks_text(ranks); };
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text({4}), "4");
  EXPECT_EQ(text({0, 1}), "0, 1");
  EXPECT_EQ(text({0, 1, 2}), "0-2");
  EXPECT_EQ(text({0, 1, 2, 5, 7, 8, 10, 11, 12, 13}), "0-2, 5, 7, 8, 10-13");
  EXPECT_EQ(text({INT_MAX, INT_MIN, INT_MIN + 1}), "2147483647, -2147483648, -2147483647");
}

}  // namespace
}  // namespace hora::internal
